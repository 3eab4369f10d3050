from prednet_jax import records
from prednet_jax.runs import executor, saddle_runs
from prednet_jax.runs.saddle_runs import Saddle


def test_how_far_the_trainings_are_is_read_from_their_log(tmp_path):
    arms = ("float32", "tile")
    saddle = Saddle(tmp_path / "saddle", arms, 100, 7, "experiments/symmetric_start.py")
    saddle_runs.prepare(saddle)
    assert saddle.state().share == 0
    assert saddle.rows() == []
    lines = [
        f"saddle {arm} seed 7: update {update} of 100, loss 0.25"
        for arm, update in (("float32", 50), ("float32", 100), ("tile", 50))
    ]
    log = saddle.folder / executor.LOG
    log.write_text("\n".join(lines) + "\n")
    assert saddle.state().share == 0.75
    assert saddle.state().text == lines[-1]
    # What the same program began is kept; another length begins anew.
    saddle_runs.prepare(saddle)
    assert log.exists()
    longer = Saddle(saddle.folder, arms, 200, 7, saddle.script_path)
    saddle_runs.prepare(longer)
    assert not log.exists()
    assert records.read_json(saddle.folder / "made_by.json")["updates"] == 200


def test_the_process_gets_its_arms_and_its_seed(tmp_path):
    saddle = Saddle(tmp_path, ("float32", "tile"), 100, 7, "symmetric_start.py")
    arguments = saddle.script.launch.arguments
    assert {"--arms=float32,tile", "--seeds=7", "--updates=100"} <= {*arguments}
