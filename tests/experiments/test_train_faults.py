"""Faults during a training: kills, signals, full disks, divergence."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from runs_on_disk import (
    TINY,
    assert_equal_runs,
    assert_one_line,
    manifest,
    metrics,
    saved,
    snapshot,
    started,
    wait_for_update,
)

# More updates than any test waits for.
LONG = (*TINY, "--updates=100000", "--noprogress")


@pytest.fixture(scope="module")
def train(forked):
    """`train(*flags)`: a training that ends well."""

    def run(*flags):
        done = forked("train.py", "--noprogress", *flags)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.mark.parametrize(
    "flags",
    [
        ("--targets=stale", "--objective=errors"),
        ("--layer_weights=10.0", "--objective=errors"),
        ("--layer_weights=10.0",),
        ("--keep_best=-1",),
        ("--clip_gradient=0",),
        ("--updates=99999999999",),
        ("--height=200000", "--width=200000"),
        ("--replicas=100000",),
        ("--init_weights=/no/such/file",),
    ],
    ids=" ".join,
)
def test_a_refused_command_leaves_the_records_there_were(
    train, forked, tmp_path, flags
):
    """Refused in one line before the first write, also where it may overwrite."""
    folder = tmp_path / "r"
    (folder / "seed_0").mkdir(parents=True)
    for name in ("manifest.json", "metrics.jsonl"):
        (folder / name).write_text("mine")
        (folder / "seed_0" / name).write_text("mine")
    before = snapshot(tmp_path)
    for place in (folder, tmp_path / "new"):
        done = forked("train.py", *TINY, f"--workdir={place}", "--overwrite", *flags)
        assert_one_line(done, 2, "expected")
    assert snapshot(tmp_path) == before


def test_a_run_is_replaced_only_when_asked_to(train, forked, tmp_path):
    """A finished one and an unfinished one; --overwrite removes all of it."""
    folder = tmp_path / "r"
    train(*TINY, f"--workdir={folder}", "--checkpoint_every=2", "--examples=2")
    (folder / "mine.txt").write_text("not of the run")
    before = snapshot(folder)
    done = forked("train.py", *TINY, f"--workdir={folder}")
    assert_one_line(done, 2, "holds a finished run; expected --resume to go on, --over")
    assert snapshot(folder) == before
    train(*TINY, "--updates=3", f"--workdir={folder}", "--overwrite")
    assert saved(folder) == [3]
    assert len(metrics(folder)) == 3
    found = {path.name for path in folder.iterdir() if "tfevents" not in path.name}
    parts = {"manifest.json", "metrics.jsonl", "weights.npz", "checkpoints"}
    assert found == parts | {"mine.txt"}
    (folder / "manifest.json").write_text('{"updates": 3}')
    done = forked("train.py", *TINY, f"--workdir={folder}")
    assert_one_line(done, 2, "holds a run that is not finished")


def test_the_second_process_in_a_workdir_refuses(forked, tmp_path):
    """While the first runs; after its SIGKILL the directory is free again."""
    folder = tmp_path / "r"
    with started(*LONG, f"--workdir={folder}") as first:
        wait_for_update(first, folder, 2)
        for flags in (["--resume"], [*TINY, "--overwrite"], TINY):
            done = forked("train.py", f"--workdir={folder}", *flags)
            assert_one_line(done, 2, f"in use by process {first.pid}")
        first.kill()
    done = forked(
        "train.py", "--noprogress", *TINY, f"--workdir={folder}", "--overwrite"
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / ".lock").exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_saves_where_checkpoints_are_asked_for(train, tmp_path, name):
    """Status 128 + signal, a checkpoint of that moment, and nothing lost by it."""
    number = signal.Signals[name]
    folder = tmp_path / "r"
    flags = (*LONG, f"--workdir={folder}", "--checkpoint_every=100000")
    with started(*flags) as process:
        wait_for_update(process, folder, 2)
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == 128 + number
    last = len(metrics(folder))
    assert saved(folder) == [last]
    assert f"interrupted by {name}: {folder} is saved after update {last}" in err
    if name == "SIGTERM":
        whole = tmp_path / "whole"
        train(*TINY, f"--updates={last}", f"--workdir={whole}")
        assert state_digest(folder, last) == state_digest(whole, last)
        assert metrics(folder) == metrics(whole)


def state_digest(folder, update):
    """SHA-256 of weights, moments, carried state and number of a checkpoint."""
    path = folder / "checkpoints" / str(update) / "digest.json"
    return json.loads(path.read_text())["state_sha256"]


def test_a_signal_ends_a_run_without_checkpoints_at_once(tmp_path):
    """Also while it compiles or reads: whatever the main thread does."""
    folder = tmp_path / "r"
    with started(*LONG, f"--workdir={folder}") as process:
        wait_for_update(process, folder, 1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert "interrupted by SIGTERM: left at once" in err
    assert saved(folder) == []


def test_a_loss_that_is_no_number_ends_the_run(train, forked, tmp_path):
    """Status 1, one line with the update and a tensor; the good checkpoint stays."""
    folder = tmp_path / "r"
    train(*TINY, f"--workdir={folder}", "--checkpoint_every=2", "--updates=4")
    weights = dict(np.load(folder / "weights.npz"))
    done = forked(
        "train.py",
        "--noprogress",
        *TINY,
        f"--workdir={tmp_path}/bad",
        "--learning_rate=1e38",
        "--checkpoint_every=1",
    )
    assert_one_line(done, 1, "the first tensor that is not finite is ")
    assert "try a lower --learning_rate, --clip_gradient=1" in done.stderr
    assert "kept" in done.stderr
    failed = manifest(tmp_path / "bad")
    assert "is not finite" in failed["failure"]
    assert "final_params_sha256" not in failed
    assert saved(tmp_path / "bad")
    assert all(np.isfinite(leaf).all() for leaf in weights.values())


def test_a_network_that_no_longer_learns_is_said(train, tmp_path):
    """A rate of 1e6 saturates everything: the gradient is exactly zero ever after."""
    flags = (*TINY, "--learning_rate=1e6", "--updates=16")
    done = train(*flags, f"--workdir={tmp_path}/r")
    norms = [row["grad_norm"] for row in metrics(tmp_path / "r")]
    assert norms[-1] == 0
    assert done.stderr.count("the gradient was exactly zero") == 1
    assert "exactly zero" in manifest(tmp_path / "r")["warnings"][0]


def test_few_checkpoints_are_kept(train, tmp_path):
    """The last two and the best one, and the final state among them."""
    keep = ("--checkpoint_every=1", "--keep_checkpoints=2", "--keep_best=1")
    train(*TINY, f"--workdir={tmp_path}/r", *keep)
    losses = [row["loss"] for row in metrics(tmp_path / "r")]
    best = 1 + int(np.argmin(losses[:4]))
    assert saved(tmp_path / "r") == [best, 5, 6]


def test_a_run_starts_from_another_runs_weights(train, forked, tmp_path):
    """Model, variant and sizes come from there; a flag that contradicts is refused."""
    first, second = tmp_path / "first", tmp_path / "second"
    train(*TINY, "--variant=lotter", "--updates=3", f"--workdir={first}")
    start = f"--init_weights={first}"
    train(start, "--window=4", "--updates=2", f"--workdir={second}")
    assert manifest(second)["network"] == manifest(first)["network"]
    wanted = manifest(first)["final_params_sha256"]
    assert manifest(second)["initial_params_sha256"] == wanted
    for flag, message in (
        ("--channels=3,5", "--channels=3,5: expected 3,4, as in"),
        ("--variant=watanabe", "--variant=watanabe: expected lotter"),
        ("--model=autoencoder", "--model=autoencoder: expected prednet"),
        ("--width=16", "--width=16: expected 8"),
    ):
        done = forked("train.py", start, flag, f"--workdir={tmp_path}/never")
        assert_one_line(done, 2, message)
    assert not (tmp_path / "never").exists()
    train(
        start, "--channels=3,4", "--window=4", "--updates=1", f"--workdir={tmp_path}/x"
    )
    # And such a run goes on without being told again.
    train(f"--workdir={second}", "--resume", "--updates=2")
    (first / "weights.npz").write_bytes(b"PK")
    done = forked("train.py", start, f"--workdir={tmp_path}/never")
    assert_one_line(done, 2, "weights.npz")


EXHAUSTED = """
import jax
import jax.numpy as jnp
from tiny_task import Tiny

class Hungry(Tiny):
    def init_params(self, key):
        {statement}

TASK = Hungry()
"""


@pytest.mark.parametrize(
    "statement", ["raise MemoryError", "return {'w': jnp.zeros(2**46)}"]
)
def test_out_of_memory_is_one_line(tmp_path, monkeypatch, statement):
    """Python's own, and XLA's RESOURCE_EXHAUSTED; status 1."""
    (tmp_path / "hungry.py").write_text(EXHAUSTED.replace("{statement}", statement))
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{tmp_path}")
    with started("--model=hungry:TASK", f"--workdir={tmp_path}/r") as process:
        out, err = process.communicate()
    done = subprocess.CompletedProcess([], process.returncode, out, err)
    assert_one_line(done, 1, "out of memory")
    assert not (tmp_path / "r").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 kB, where the user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no right to mount a small disk; test_checkpoints fakes one")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_line(train, forked, small_disk, tmp_path):
    """Status 1, the checkpoints before are good: with room, the run goes on."""
    folder = small_disk / "r"
    # What fills the disk is not the run's: its own need is refused beforehand.
    flags = (*TINY, "--updates=40", "--checkpoint_every=1", "--keep_checkpoints=2")
    (small_disk / "other").write_bytes(bytes(90_000))
    done = forked("train.py", "--noprogress", *flags, f"--workdir={folder}")
    if done.returncode == 2:
        assert_one_line(done, 2, "checkpoints need at least")
    else:
        assert_one_line(done, 1, "the disk is full")
    (small_disk / "other").unlink()
    room = tmp_path / "room"
    if folder.exists():
        shutil.copytree(folder, room)
    train(*flags, f"--workdir={room}", "--resume")
    train(*flags, f"--workdir={tmp_path}/whole")
    assert_equal_runs(room, tmp_path / "whole")


NETWORKS = {
    "prednet": (*TINY, "--updates=40", "--noise=reduction_order:granularity=element"),
    "autoencoder": (
        "--model=autoencoder",
        "--hidden=8,4,8",
        "--updates=300",
        "--noise=ulp",
    ),
    "replicas": (*TINY, "--updates=40", "--replicas=2", "--devices=1"),
}


def killed_and_resumed(rng, folder, flags, damage):
    """Kills a run at a random moment until it is done; how often it was killed."""
    command = (*flags, f"--workdir={folder}", "--noprogress", "--resume")
    kills = 0
    while True:
        with started(*command) as process:
            try:
                # From the imports to the last write, and longer from kill to kill.
                process.wait(rng.uniform(1, 8 + 4 * kills))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
            out, err = process.communicate()
        if process.returncode == 0:
            return kills
        assert process.returncode == -signal.SIGKILL, out + err
        if damage and kills == 1:
            spoil(folder)


def spoil(folder):
    """Flips a bit in the newest checkpoint of every run."""
    for place in Path(folder).rglob("checkpoints"):
        newest = max(map(int, (p.name for p in place.glob("[0-9]*"))), default=None)
        if newest is None:
            continue
        files = [p for p in (place / str(newest)).rglob("*") if p.is_file()]
        path = max(files, key=lambda p: p.stat().st_size)
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)


def runs_in(folder):
    return sorted(path.parent for path in Path(folder).rglob("manifest.json"))


def check_kills(train, tmp_path, network, rng, damage):
    flags = (*NETWORKS[network], "--checkpoint_every=2")
    train(*flags, f"--workdir={tmp_path}/whole")
    kills = killed_and_resumed(rng, tmp_path / "killed", flags, damage)
    pairs = zip(runs_in(tmp_path / "killed"), runs_in(tmp_path / "whole"), strict=True)
    for killed, whole in pairs:
        assert_equal_runs(killed, whole)
    return kills


@pytest.mark.parametrize("at", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_killed_run_ends_in_the_same_bits(train, tmp_path, at):
    """SIGKILL in the first update after one was written, and after a checkpoint."""
    flags = (*NETWORKS["prednet"], "--checkpoint_every=2")
    train(*flags, f"--workdir={tmp_path}/whole")
    folder = tmp_path / "killed"
    with started(*flags, f"--workdir={folder}", "--noprogress") as process:
        wait_for_update(process, folder, at)
        process.kill()
    if at == 5:
        spoil(folder)
    train(*flags, f"--workdir={folder}", "--resume")
    assert_equal_runs(folder, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [False, True], ids=["killed", "killed and damaged"])
@pytest.mark.parametrize("network", NETWORKS)
def test_kills_at_random_moments_change_no_bit(train, tmp_path, network, damage):
    """SIGKILL at random moments, four rounds: resumed equals uninterrupted."""
    rng = np.random.default_rng([len(network), damage])
    kills = 0
    for round_ in range(4):
        place = tmp_path / str(round_)
        place.mkdir()
        kills += check_kills(train, place, network, rng, damage)
    assert kills >= 4
