"""The verdict as text, and values as HTML."""

from prednet_jax import report
from prednet_jax.report import verdict_text


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


def test_claims_and_a_repetition_in_sentences():
    claim = {"claim": "noise helps", "model": "prednet", "answer": "cannot tell"}
    measured = claim | {"estimate": 0.0123, "low": -0.01, "high": 0.05}
    few = claim | {"estimate": 0.0123, "low": None, "high": None}
    same = claim | {"answer": "same bits", "estimate": 0, "low": None, "high": None}
    assert report.claim_lines({"claims": [measured, few, same]}).splitlines() == [
        "prednet: noise helps: cannot tell, +1.2 % [-1.0, +5.0]",
        "prednet: noise helps: cannot tell, +1.2 % (too few seeds for an interval)",
        "prednet: noise helps: no, same bits",
    ]
    stale = {
        "claim": "stale targets raise the loss",
        "model": "prednet",
        "answer": "yes",
        "estimate": 2.12,
        "low": None,
        "high": None,
        "published": {"estimate": 2.06, "low": 1.85, "high": 2.28},
        "predicted": [1.36, 3.05],
        "holds": True,
    }
    noise = stale | {
        "claim": "random order of sums changes the loss",
        "answer": "no effect within the margin",
        "estimate": 0.06,
        "predicted": [-0.0002, 0.049],
        "holds": False,
    }
    both = {"claim": noise["claim"], "model": "prednet"}
    both |= {"seeds": 43, "estimate": 0.004, "low": -0.002, "high": 0.011}
    verdict = {"claims": [stale, noise], "together": [both]}
    assert verdict_text.claim_sentences(verdict) == [
        "prednet: stale targets raise the loss: yes, +212 % here, predicted +136 to "
        "+305 (published +206 % [+185, +228])",
        "prednet: random order of sums changes the loss: no, +6.0 % here, predicted "
        "0.0 to +4.9, outside, as one honest run in 20 is (published +206 % [+185, "
        "+228]; together +0.4 % [-0.2, +1.1])",
    ]
    verdict["claims"] = [
        noise
        | {"answer": "cannot tell", "estimate": 2e-7, "predicted": None}
        | {"published": None, "holds": None}
    ]
    verdict["manipulation"] = {"prednet": {"distance_over_travelled": 3.1e-6}}
    assert verdict_text.claim_sentences(verdict) == [
        "prednet: random order of sums changes the loss: not in this length, 0.0 %; "
        "the runs are 3e-06 of the way apart, too little to say more"
    ]


def test_text_table_of_the_least_a_verdict_has():
    contrast = {"model": "prednet", "treatment": "gpu_deterministic", "control": "gpu"}
    contrast |= {"metric": "loss", "n": 1, "mean_difference": 1e-6, "p_value": 1.0}
    contrast |= dict.fromkeys(("ci_low", "ci_high", "p_holm", "tost_p"))
    contrast |= {"margin": 1e-3, "verdict": "inconclusive"}
    words = dict.fromkeys(("prednet", "autoencoder"), "inconclusive")
    least = {"contrasts": [contrast], "verdict": words}
    text = report.text_table(least)
    assert "\ngpu_deterministic  1 " in text
    assert "\n- gpu\n" in text
    assert text.endswith("autoencoder: INCONCLUSIVE")
