"""A comparison from its measurement to its end, with stand-ins for the trainings."""

import time
from pathlib import Path

import pytest

from prednet_jax import AutoencoderConfig, PredNetConfig, runs, tasks
from prednet_jax.runs import budget, progress, session, shortened
from prednet_jax.runs.executor import ProcessError
from prednet_jax.runs.saddle_runs import Saddle

HERE = Path(__file__).parent
PREDNET = tasks.of(PredNetConfig(channels=(3, 4), height=16, width=16))
AUTOENCODER = tasks.of(AutoencoderConfig())


def design(folder, **changes):
    return runs.Design(
        root=folder,
        script=str(HERE / "fake_train.py"),
        tasks=(PREDNET, AUTOENCODER),
        arms=None,
        first_seed=7,
        seeds=2,
        updates=1000,
        **changes,
    )


def saddle(folder, *arms):
    return Saddle(folder / "saddle", arms, 20, 7, str(HERE / "fake_saddle.py"))


def test_every_training_is_listed_and_its_end_has_a_line(tmp_path, capsys):
    whole, start = design(tmp_path), saddle(tmp_path, "float32", "tile")
    with progress.Reporter(every=1e3) as reporter:
        speed = session.measure(reporter, whole, 2)
        reached = session.train(reporter, whole, start, processes=2, deadline=None)
    # Every update of the stand-in takes 0.1 s.
    costs = [budget.COSTS[name][1] for name in budget.MEASURED]
    assert speed.updates == pytest.approx(sum(0.1 / cost for cost in costs) / 2)
    assert not (tmp_path / "measurement").exists()
    assert reached == (whole, start)
    assert runs.split_finished(whole.runs())[0] == []
    assert [row.arm for row in start.rows()] == ["float32", "tile"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "10 trainings, 2 at a time:"
    listed = [line.split(":")[0].strip() for line in lines[1:9]]
    assert listed[:3] == [f"prednet {name}" for name in session.NEEDED]
    assert listed[4:6] == ["saddle float32", "saddle tile"]
    ends = [line for line in lines if "finished" in line]
    assert len(ends) == 10
    assert ends[-1].startswith("[0:")
    assert any(end.endswith("of 10: prednet reduction_order, repeat 2") for end in ends)
    # The runs are on the disk, so nothing is left to do.
    with progress.Reporter(every=1e3) as reporter:
        session.train(reporter, whole, start, processes=2, deadline=None)
    assert "0 trainings" in capsys.readouterr().out


def test_the_end_of_the_time_leaves_what_was_reached(tmp_path, capsys, monkeypatch):
    """A training that is stopped costs its part alone, not the whole saddle."""
    whole, start = design(tmp_path), saddle(tmp_path, "float32", "tile", "run")
    cut = []
    monkeypatch.setattr(shortened, "reached", lambda job, seed: 1000)
    monkeypatch.setattr(shortened, "shorten", lambda *run: cut.append(run[1:]))

    def execute(queue, *, processes, stop):
        for script in [job for job in queue if not isinstance(job, runs.Job)]:
            script.run(stop)
        while not stop.wait(0.1):
            pass
        yield runs.Ended(queue[0], ProcessError("stopped"))

    monkeypatch.setattr(session.executor, "execute", execute)
    with progress.Reporter(every=1e3) as reporter:
        deadline = time.monotonic() + 1
        reached, left = session.train(
            reporter, whole, start, processes=2, deadline=deadline
        )
    assert (reached.seeds, reached.updates) == (2, 1000)
    assert left.arms == ("float32", "tile")
    assert (7, 1000) in cut
    assert (
        "The time is over. Judged are 2 seeds of 1000 updates, without saddle run."
        in (capsys.readouterr().out)
    )
