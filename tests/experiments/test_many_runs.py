import subprocess
import sys

import pytest
from test_third_network import HERE, NAME

from prednet_jax import noise, process, records
from prednet_jax.runs import sweeps
from tests.processes import SCRIPTS

TINY = ("--channels=3,4", "--height=16", "--width=16", "--window=3")


def started(script, folder, *flags):
    return subprocess.Popen(
        [sys.executable, SCRIPTS / script, *TINY, f"--workdir={folder}", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process):
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def read_until(process, mark):
    while mark not in (line := process.stdout.readline()):
        assert line


def table(folder):
    """Every run once, without what no two runs share."""
    parquet = pytest.importorskip("pyarrow.parquet")
    assert len(list(folder.glob("runs/*/*/*/seed_*/receipt.json"))) == 6
    found = parquet.read_table(folder / sweeps.RESULT)
    return found.drop_columns(list(sweeps.TIMINGS))


@pytest.mark.fault
@pytest.mark.slow
def test_a_node_of_three_is_killed_and_an_interrupted_sweep_goes_on(tmp_path):
    """Every run exactly once; the merged table is an undisturbed one, bit for bit."""
    pytest.importorskip("ray")
    sweep = ("sweep.py", tmp_path / "out", "--updates=5", "--seeds=0,1,2")
    whole = ("sweep.py", tmp_path / "whole", *sweep[2:])
    assert "6 runs" in ended(started(*whole))
    with subprocess.Popen(
        [sys.executable, str(HERE / "three_nodes.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as cluster:
        address = f"--address={cluster.stdout.readline().strip()}"
        cut = started(*sweep, address)
        read_until(cut, "[1/6]")
        cluster.stdin.write("\n")
        cluster.stdin.flush()
        assert cluster.stdout.readline() == "killed\n"
        read_until(cut, "[3/6]")
        cut.kill()
        cut.communicate()
        assert "of 6 runs kept" in ended(started(*sweep, address))
        assert table(sweep[1]).equals(table(whole[1]))
        cluster.stdin.close()


@pytest.mark.slow
def test_a_whole_comparison_of_two_networks(forked, tmp_path):
    done = forked(
        "compare_backends.py",
        f"--models=autoencoder,{NAME}",
        "--arms=float64,stale_targets,gaussian_10,gpu",
        "--seeds=2",
        "--updates=10",
        "--image_updates=20",
        "--window=4",
        f"--workdir={tmp_path}/out",
        folder=HERE,
    )
    verdict = records.read_json(tmp_path / "out" / "verdict.json")
    assert verdict["verdict"] == dict.fromkeys(("autoencoder", NAME), "inconclusive")
    rows = {(c["model"], c["treatment"], c["control"]): c for c in verdict["contrasts"]}
    arms = {"reduction_order", "float64", "stale_targets", "gaussian_10"}
    for model in verdict["verdict"]:
        assert {arm for m, arm, of in rows if (m, of) == (model, "float32")} >= arms
        assert (model, "reduction_order", "fixed_orders") in rows
        assert rows[model, "reduction_order", "float32"]["bitwise_equal"] == 0
        draws = verdict["losses"][model]["reduction_order"]
        assert [len(found) for found in draws.values()] == [2, 2]
        assert verdict["manipulation"][model]["bits_differ"]
    # The third network sees windows: stale targets move it, and no single pictures.
    stale = {m: row for (m, arm, _), row in rows.items() if arm == "stale_targets"}
    assert stale[NAME]["bitwise_equal"] == 0
    assert stale["autoencoder"]["bitwise_equal"] == 2
    assert stale["autoencoder"]["mean_difference"] == 0
    assert stale[NAME]["role"] == "stale"
    noisy = rows[NAME, "gaussian_10", "float32"]
    assert (noisy["role"], noisy["scale"]) == ("gaussian", 10)
    noises = {arm["name"]: arm["noise"] for arm in verdict["arms"] if "noise" in arm}
    assert noises["float32"] == "none"
    assert noise.parse(noises["reduction_order"]) == noise.ReductionOrder()
    assert "granularity=tile" in noises["reduction_order"]
    if process.gpu_found() is None:
        assert "skipped gpu: no GPU found" in done.stdout
    assert (tmp_path / "out" / "report.html").is_file()
