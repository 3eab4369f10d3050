"""The README's table says what the records say."""

from prednet_jax.report.document_tables import headline


def test_each_row_has_its_figure_and_its_command(verdict):
    ends = {"published": "a", "input copied": "a", "target copied": "b"}
    chainer = [
        {"seed": str(seed), "arm": arm, "final_sha256": end}
        for seed in range(3)
        for arm, end in ends.items()
    ]
    chainer[-1]["final_sha256"] = "a"  # One seed without a gap.
    rows = [
        {"noise": "reduction_order", "spread": 3.1e-8, "time_ratio": 1.46},
        {"noise": "reduction_order", "spread": 6.3e-8, "time_ratio": 1.38},
        {"noise": "ulp", "spread": 1.0, "time_ratio": 9.0},
    ]
    groups = [
        {"form": "aligned", "noise": "none", "escaped": [False, False]},
        {"form": "aligned", "noise": "ulp", "escaped": [False, False]},
        {"form": "rotated", "noise": "none", "escaped": [False, False]},
    ]
    change = {"n": 40, "control_mean": 2.0, "verdict": "equivalent"}
    change |= {"mean_difference": -0.004, "ci_low": -0.02, "ci_high": 0.01}
    study = {
        "verdict": {"prednet": "inconclusive"},
        "contrasts": [change | {"treatment": "reduction_order", "control": "float32"}],
    }
    table = headline(
        chainer,
        verdict,
        study,
        {"prednet": {"rows": rows}},
        {"groups": groups},
        {"rows": rows},
    )
    lines = table.splitlines()
    assert "| 2 of 3 seeds |" in lines[2]
    assert "| 3 of 3 seeds |" in lines[3]
    assert any("PredNet, loss with stale targets | +32 % [" in line for line in lines)
    assert "stale targets | 0, bit for bit | `make compare`" in table
    assert "| **refuted** | `make compare` |" in table
    (long,) = [line for line in lines if "40 seeds: loss with random order" in line]
    assert "| -0.20 % [-1.00, +0.50], equivalent |" in long
    assert "| **inconclusive** | `make tables` |" in table
    assert "| 3.1e-08 to 6.3e-08 | `experiments/gradient_noise.py` |" in table
    assert "| 2 of 2 | `experiments/saddle_escape.py` |" in table
    assert "| 1.38 to 1.46 |" in table
