import re
import shutil

import numpy as np
import pytest
from PIL import Image
from runs_on_disk import TINY, assert_equal_runs, events, manifest, metrics

from tests.processes import ROOT


@pytest.fixture(scope="module")
def runs(train, whole, tmp_path_factory):
    """Seeds 0 and 1 in one process, seed 0 again in another, with checkpoints."""
    root = tmp_path_factory.mktemp("runs")
    train(*TINY, f"--workdir={root}/many", "--seeds=0,1", "--examples=2")
    shutil.copytree(whole, root / "again")
    return root


def test_same_seed_gives_the_same_bits_and_another_does_not(runs):
    many, other, again = runs / "many/seed_0", runs / "many/seed_1", runs / "again"
    assert_equal_runs(many, again)
    assert metrics(many) != metrics(other)
    for field in ("initial_params_sha256", "data_order_sha256", "final_params_sha256"):
        assert manifest(many)[field] != manifest(other)[field]


def test_the_page_on_runs_in_python(runs, tmp_path, monkeypatch, capsys):
    """Its examples, in order, on a run at the place that the page names."""
    page = (ROOT / "docs/predict_and_evaluate.md").read_text()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/first").symlink_to(runs / "again")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/predict_and_evaluate.md", "exec"), {})
    assert re.search(r"6 updates; .*frozen", capsys.readouterr().out, re.DOTALL)
    named = re.findall(r"^\| `([a-z]+\.\w+)`", page, re.MULTILINE)
    missing = {name for name in named if not (runs / "again" / name).exists()}
    assert missing == {"validation.jsonl", "loss.png"}


def test_replicas_are_the_seeds(train, runs, tmp_path):
    """Losses and gradients to 1e-5 relative: another program of the same sums."""
    folders = (f"--workdir={tmp_path}/two", f"--profile={tmp_path}/trace")
    train(*TINY, "--replicas=2", *folders)
    for seed in ("seed_0", "seed_1"):
        one, other = runs / "many" / seed, tmp_path / "two" / seed
        for mine, theirs in zip(metrics(one), metrics(other), strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5)
        for field in ("initial_params_sha256", "data_order_sha256"):
            assert manifest(one)[field] == manifest(other)[field]
        assert len(manifest(other)["final_params_sha256"]) == 64
        assert manifest(other)["layout"]["replicas"] == 2
        assert manifest(other)["layout"]["replica_mode"] == "map"
    assert list((tmp_path / "trace").rglob("perfetto_trace.json.gz"))


def test_records_hold_what_the_contract_names(runs):
    rows = metrics(runs / "again")
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5, 6]
    # The first window of a sequence scores one transition less.
    assert [row["frames_seen"] for row in rows] == [3, 7, 11, 15, 19, 23]
    found = manifest(runs / "again")
    assert found["flags"]["channels"] == ["3", "4"]
    assert found["noise"] == "none"
    assert found["device"]["platform"] == "cpu"
    assert found["versions"]["jax"]
    assert (runs / "many/seed_0/examples.npz").is_file()


def test_tensorboard_has_what_the_metrics_have(runs):
    rows, found = metrics(runs / "again"), events(runs / "again")
    names = {"loss", "last_frame_loss", "copy_last_frame_loss", "grad_norm"}
    assert set(found) == names
    for name in names:
        expected = [(row["update"], pytest.approx(row[name])) for row in rows]
        assert found[name] == expected


def test_a_preset_sets_what_is_not_given_and_the_last_line_says_how_far_it_got(
    train, tmp_path
):
    folder = tmp_path / "a $b"
    small = (*TINY[:3], "--updates=2", "--batch=2", "--convolution=xla")
    done = train("--preset=quick", *small, f"--workdir={folder}")
    flags = manifest(folder)["flags"]
    assert (flags["window"], flags["updates"], flags["height"]) == (20, 2, 8)
    last = next(line for line in done.stdout.splitlines() if "predict.py" in line)
    said = r"\d\.\d\d times the loss of copying .* while training, \d+\.\d\d frozen"
    assert re.search(said, last)
    # The command can be given to a shell.
    assert f"predict.py '--weights={folder}' shows" in last
    # The run goes on as it was begun, not as the preset says.
    again = train("--resume", f"--workdir={folder}")
    assert "finished, 2 updates; nothing to do" in again.stdout


BROKEN = """
from tiny_task import Tiny

class Broken(Tiny):
    def {}

TASK = Broken()
"""


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("init_params(self, key): raise ValueError('mine')", "ValueError: mine"),
        (
            "outputs(self, params, carry, *_): return carry @ carry, carry",
            "TypeError: dot_general requires",
        ),
    ],
)
def test_a_bug_shows_its_traceback(forked, tmp_path, method, message):
    """One of the user's own, and JAX's shape error: no mistakes of the command line."""
    (tmp_path / "broken_task.py").write_text(BROKEN.format(method))
    shutil.copy(ROOT / "tests/experiments/tiny_task.py", tmp_path)
    flags = ("--model=broken_task:TASK", "--updates=2", f"--workdir={tmp_path}/r")
    done = forked("train.py", *flags, folder=tmp_path, status=1)
    assert "Traceback" in done.stderr
    assert message in done.stderr


def test_a_run_is_tuned_to_predict_further_from_its_weights(train, runs, tmp_path):
    start, far = runs / "many/seed_0", tmp_path / "far"
    flags = ("--mode=finetune_rollout", f"--init_weights={start}", "--window=6")
    train(*flags, "--updates=3", f"--workdir={far}")
    told = manifest(far)
    assert told["initial_params_sha256"] == manifest(start)["final_params_sha256"]
    # Two thirds of the window, written down; windows are sequences of their own.
    assert told["flags"]["extrapolate_from"] == 4
    assert [row["frames_seen"] for row in metrics(far)] == [5, 10, 15]


def test_a_folder_is_split_by_the_names_of_its_folders(train, refused, tmp_path):
    """It was trained on as a whole, the held-out frames too."""
    frames = np.random.default_rng(0).integers(0, 256, (3, 20, 8, 8, 3), np.uint8)
    for place, part in zip(("train", "val", "other"), frames, strict=True):
        (tmp_path / "data" / place).mkdir(parents=True)
        for i, picture in enumerate(part):
            image = Image.fromarray(picture)
            image.save(tmp_path / "data" / place / f"{i:02d}.png")
    whole, held_out = tmp_path / "data", tmp_path / "data" / "val"
    every = "--validate_every=3"
    for name, sampling in (("a", "--sampling=stream"), ("b", "--sampling=windows")):
        words = (*TINY, f"--data={whole}", sampling, every)
        done = train(*words, f"--workdir={tmp_path}/{name}")
        assert done.stderr.count("split by the names in it, train: train, val") == 1
        found = manifest(tmp_path / name)
        assert f"{whole}/train" in found["data"]
        assert str(held_out) in found["validation"]["data"]
        assert found["validation"]["frames"] == 20
        rows = metrics(tmp_path / name, "validation.jsonl")
        assert [row["update"] for row in rows] == [0, 3, 6]
    # The same, named by flags.
    flags = (*TINY, f"--data={whole}/train", every)
    folder = f"--workdir={tmp_path}/c"
    train(*flags, f"--validation_data={held_out}", folder)
    train("--resume", folder)
    same = [metrics(tmp_path / name, "validation.jsonl") for name in "ac"]
    assert same[0] == same[1]
    never = ("train.py", *flags, f"--workdir={tmp_path}/never")
    refused("are trained on; expected", *never, f"--validation_data={whole}/train")
    refused("--validation_data, or a folder that", *never)
    assert not (tmp_path / "never").exists()


def test_black_frames_are_named_as_the_reason(train, tmp_path):
    np.save(tmp_path / "black.npy", np.zeros((31, 8, 8, 3), np.uint8))
    data = f"--data={tmp_path}/black.npy"
    done = train(*TINY, data, "--updates=10", f"--workdir={tmp_path}/run")
    assert done.stderr.count("exactly zero in 10 updates: the frames are black") == 1
