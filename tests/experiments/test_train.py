"""train.py as a user runs it: in a process of its own, tiny."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "experiments"
TINY = (
    "--channels=3,4",
    "--height=8",
    "--width=8",
    "--window=4",
    "--updates=6",
    "--convolution=shifted",
)


def run(*arguments, script="train.py"):
    return subprocess.run(
        [sys.executable, str(SCRIPTS / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def trained(*arguments):
    done = run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def metrics(folder):
    """The metrics without the wall time, which is no result."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Seeds 0 and 1 in one process, seed 0 again in another, with checkpoints."""
    root = tmp_path_factory.mktemp("runs")
    trained(*TINY, f"--workdir={root}/many", "--seeds=0,1", "--examples=2")
    trained(*TINY, f"--workdir={root}/again", "--checkpoint_every=3")
    return root


def test_same_seed_gives_the_same_bits_and_another_does_not(runs):
    many, other, again = runs / "many/seed_0", runs / "many/seed_1", runs / "again"
    assert metrics(many) == metrics(again)
    assert metrics(many) != metrics(other)
    for field in ("initial_params_sha256", "data_order_sha256", "final_params_sha256"):
        assert manifest(many)[field] == manifest(again)[field]
        assert manifest(many)[field] != manifest(other)[field]


def test_replicas_are_the_seeds(runs, tmp_path):
    """Losses and gradients to 1e-5 relative: another program of the same sums."""
    trained(
        *TINY,
        f"--workdir={tmp_path}/two",
        "--replicas=2",
        f"--profile={tmp_path}/trace",
    )
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
    assert {"loss", "last_frame_loss", "grad_norm"} <= set(rows[0])
    found = manifest(runs / "again")
    assert found["flags"]["channels"] == ["3", "4"]
    assert found["noise"] == "none"
    assert found["device"]["platform"] == "cpu"
    assert found["versions"]["jax"]
    assert (runs / "many/seed_0/examples.npz").is_file()


def test_records_name_the_algorithm_of_each_convolution(runs, tmp_path):
    assert set(manifest(runs / "again")["convolutions"].values()) == {"shifted"}
    chosen = {}
    for precision in ("float32", "float64"):
        folder = tmp_path / precision
        trained(
            *TINY,
            "--convolution=auto",
            "--updates=1",
            f"--precision={precision}",
            f"--workdir={folder}",
        )
        chosen[precision] = manifest(folder)["convolutions"]
    assert chosen["float32"]["top_down_0"] == "folded"
    assert set(chosen["float64"].values()) == {"im2col"}
    assert chosen["float32"].keys() == chosen["float64"].keys()


def test_resumed_run_ends_in_the_same_bits(runs, tmp_path):
    """A run that stopped after its checkpoint at update 3 goes on from there."""
    folder = tmp_path / "r"
    shutil.copytree(runs / "again", folder)
    shutil.rmtree(folder / "checkpoints" / "6")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:4]))
    trained(*TINY, f"--workdir={folder}", "--resume")
    assert metrics(folder) == metrics(runs / "again")
    found, whole = manifest(folder), manifest(runs / "again")
    assert found["final_params_sha256"] == whole["final_params_sha256"]
    done = run(*TINY, f"--workdir={folder}", "--resume", "--noise=ulp")
    assert done.returncode == 2
    assert "--resume: noise ulp:" in done.stderr
    assert manifest(folder)["noise"] == "none"


def test_one_thread_is_really_one(tmp_path):
    trained(*TINY, f"--workdir={tmp_path}/one", "--threads=1")
    found = manifest(tmp_path / "one")
    assert found["device"]["threads"] == 1
    # Processor seconds a second of wall time: at most one processor's worth, with room
    # for the clocks' granularity.
    assert found["measured_parallelism"] < 1.1
    assert found["processor_seconds_per_second"] < 1.1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nonsense"], "nonsense"),
        (["--updates=abc"], "--updates=abc"),
        (["--updates=0"], "updates=0: expected a whole number, at least 1"),
        (
            ["--updates=2", "--profile=trace"],
            "updates=2: expected at least 3 with profile",
        ),
        (["--height=9"], "height=9: expected a multiple of 2"),
        (["--channels=3,x"], "--channels=3,x: expected whole numbers"),
        (["--data=/no/such/place"], "/no/such/place"),
        (["--noise=quantum"], "quantum"),
        (["--seed=-1"], "seed=-1"),
        (["--init_weights=/no/such/file"], "/no/such/file: No such file"),
        (["--replicas=2", "--seeds=0,1"], "--seeds: expected --replicas=N"),
        (["--replicas=3", "--devices=2"], "replicas=3 with batch=1 on 2 devices"),
        (["--batch=0"], "--batch=0: expected a whole number, at least 1"),
        (["--coordinator=x:1"], "--coordinator: expected --replicas or --batch"),
        (["--model=resnet"], "model='resnet': expected prednet, autoencoder or mod"),
        (["--model=no.such:TASK"], "no module no.such"),
        (["--model=json:dumps"], "expected prednet, autoencoder or module:object"),
        (["extra"], "extra"),
    ],
)
def test_mistakes_end_in_one_line_and_status_two(refused, tmp_path, flags, message):
    folder = tmp_path / "never"
    refused(message, "train.py", *TINY, f"--workdir={folder}", *flags)
    assert not folder.exists()


BROKEN = """
from prednet_jax import tasks

class Broken(tasks.Task):
    frame = (8, 8, 3)

    def init_params(self, key):
        {init}

    def outputs(self, params, carry, frames, first):
        {outputs}

TASK = Broken()
"""


@pytest.mark.parametrize(
    ("init", "outputs", "message"),
    [
        ("raise ValueError('of my own')", "pass", "ValueError: of my own"),
        (
            "import jax; return {'w': jax.numpy.ones((2, 3))}",
            "return params['w'] @ params['w'], None",
            "TypeError: dot_general requires",
        ),
    ],
)
def test_a_bug_shows_its_traceback(tmp_path, monkeypatch, init, outputs, message):
    """One of the user's own, and JAX's shape error: no mistakes of the command line."""
    text = BROKEN.replace("{init}", init).replace("{outputs}", outputs)
    (tmp_path / "broken_task.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{SCRIPTS.parent}:{tmp_path}")
    done = run("--model=broken_task:TASK", "--updates=2", f"--workdir={tmp_path}/r")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert message in done.stderr


def test_help_is_no_mistake(forked):
    done = forked("train.py", "--help")
    assert done.returncode == 0
    for flag in ("--channels", "--targets", "--noise", "--workdir"):
        assert flag in done.stdout
