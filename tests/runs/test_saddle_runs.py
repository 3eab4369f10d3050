import dataclasses

from prednet_jax import records
from prednet_jax.runs import saddle_runs
from prednet_jax.runs.saddle_runs import Saddle
from prednet_jax.saddles import symmetric

SADDLE = Saddle(None, ("float32", "tile", "run"), 100, 7, "symmetric_start.py")


def saddle(folder):
    found = dataclasses.replace(SADDLE, folder=folder / "saddle")
    saddle_runs.prepare(found)
    return found


def test_how_far_a_training_is_is_read_from_its_log(tmp_path):
    one = saddle(tmp_path)
    assert one.state("tile").share == 0
    log = one.folder / "tile.txt"
    log.touch()
    assert one.state("tile").text == "saddle tile: compiling"
    for update, text in ((50, "saddle tile: update 50 of 100, loss 0.25"), (100, "")):
        with open(log, "a") as file:
            file.write(f"saddle tile seed 7: update {update} of 100, loss 0.25\n")
        assert one.state("tile").share == update / 100
        assert one.state("tile").text == text


def test_what_the_same_program_began_is_kept(tmp_path):
    one = saddle(tmp_path)
    (one.folder / "tile.txt").touch()
    saddle_runs.prepare(one)
    assert (one.folder / "tile.txt").exists()
    longer = dataclasses.replace(one, updates=200)
    saddle_runs.prepare(longer)
    assert not (one.folder / "tile.txt").exists()
    assert records.read_json(one.folder / "made_by.json")["updates"] == 200


def test_each_missing_arm_is_a_process_and_what_has_finished_is_judged(
    tmp_path, monkeypatch
):
    one = saddle(tmp_path)
    arguments = one.scripts()[1].launch.arguments
    assert {"--arms=tile", "--seeds=7", "--updates=100"} <= {*arguments}
    assert [script.name for script in one.scripts()] == [*saddle_runs.MEANINGS]
    done = []
    (one.folder / "runs.csv").touch()
    row = dict.fromkeys(symmetric.SaddleRow._fields, 0)

    def rows(path):
        return [symmetric.SaddleRow(**row | {"arm": arm}) for arm in done]

    monkeypatch.setattr(symmetric, "read", rows)
    for arm, left, judged in (
        ("float32", ["tile", "run"], None),
        ("tile", ["run"], ("float32", "tile")),
        ("run", [], ("float32", "tile", "run")),
    ):
        done.append(arm)
        assert [s.name for s in one.scripts()] == [f"saddle {arm}" for arm in left]
        assert (found := one.finished()) is None or found.arms == judged
        assert (found is None) == (judged is None)
