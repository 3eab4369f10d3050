"""The verdict as text, and values as HTML."""

import json

from prednet_jax import report


def test_text_table_names_every_contrast_and_fits(verdict):
    text = report.text_table(verdict)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert text.isascii()
    assert "prednet: REFUTED" in lines
    assert "autoencoder: INCONCLUSIVE" in lines
    for one in verdict["contrasts"]:
        rows = [line for line in lines if line.split()[:1] == [one["treatment"]]]
        # A row in each model.
        assert len(rows) == 2, one["treatment"]
    assert "+0.0" in next(line for line in lines if line.startswith("stale_targets"))
    assert "6/6" in next(line for line in lines if line.startswith("threads_1"))
    assert "about emulated noise only" in " ".join(lines)
    for model in ("prednet", "autoencoder"):
        assert f"p Holm: over all 7 contrasts of {model}" in lines


def test_claims_are_sentences():
    claim = {"claim": "noise helps", "model": "prednet", "answer": "cannot tell"}
    measured = claim | {"estimate": 0.0123, "low": -0.01, "high": 0.05}
    few = claim | {"estimate": 0.0123, "low": None, "high": None}
    same = claim | {"answer": "same bits", "estimate": 0, "low": None, "high": None}
    assert report.claim_lines({"claims": [measured, few, same]}).splitlines() == [
        "prednet: noise helps: cannot tell, +1.2 % [-1.0, +5.0]",
        "prednet: noise helps: cannot tell, +1.2 % (too few seeds for an interval)",
        "prednet: noise helps: same bits",
    ]


def test_text_table_counts_the_pairs_of_each_row(verdict):
    verdict["contrasts"][0]["n"] = 5
    head, _, *rows = report.text_table(verdict).splitlines()[2:9]
    assert head.split()[1] == "n"
    assert [row.split()[1] for row in rows] == ["5", "6", "6", "6", "6"]


def test_text_table_fits_with_long_names_and_wide_numbers(verdict):
    for one in verdict["contrasts"]:
        one["treatment"] = "reduction_order_element_of_a_kind_that_nobody_foresaw"
        one["control"] = "gpu"
        one |= {"n": 1000, "bitwise_equal": 1000, "verdict": "inconclusive"}
        one |= {"mean_difference": -1.23456e-10, "p_holm": 1.2e-10, "tost_p": 3e-12}
    text = report.text_table(verdict)
    assert max(map(len, text.splitlines())) <= 100
    assert f"\n{one['treatment']} - gpu\n" in text


def test_text_table_of_the_least_a_verdict_has():
    least = {
        "contrasts": [
            {
                "model": "prednet",
                "treatment": "gpu_deterministic",
                "control": "gpu",
                "metric": "loss",
                "n": 1,
                "mean_difference": 1e-6,
                "ci_low": None,
                "ci_high": None,
                "p_value": 1.0,
                "p_holm": None,
                "tost_p": None,
                "margin": 1e-3,
                "verdict": "inconclusive",
            }
        ],
        "verdict": {"prednet": "inconclusive", "autoencoder": "inconclusive"},
    }
    text = report.text_table(least)
    assert "gpu_deterministic - gpu" in text
    assert text.endswith("autoencoder: INCONCLUSIVE")


def test_no_pair_of_columns_touches(verdict):
    rows = report.text_table(verdict).split("\n\n")[0].splitlines()[2:]
    rule = rows[1]
    edges = [i for i, character in enumerate(rule) if character == " "]
    body = [row for row in rows if row.split()[0] in {"float64", "ulp", "treatment"}]
    assert len(body) == 3
    for row in body:
        assert all(row.ljust(len(rule))[i] == " " for i in edges), row


def test_text_table_takes_what_json_gives_back(verdict):
    assert report.text_table(json.loads(json.dumps(verdict))) == report.text_table(
        verdict
    )
