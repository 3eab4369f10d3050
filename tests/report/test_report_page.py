"""Figures and the page."""

import base64
import hashlib
import html
import io
import json
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from prednet_jax import report
from prednet_jax.records import RecordError
from prednet_jax.report import answers, curves, figures, finding, theme
from prednet_jax.report import script as page_script

VOID = {"meta", "img", "source", "br", "link"}
MODELS = ("prednet", "autoencoder")


class Balance(HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.text = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def text_of(page: str) -> str:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return "".join(parser.text)


def test_the_page_holds_verdicts_arms_and_commands(built, verdict):
    page = (built / report.PAGE).read_text()
    text = text_of(page)
    assert "running mean over 6 updates" in text
    assert "PredNet: hypothesis refuted" in text
    assert "Autoencoder: inconclusive" in text
    for arm in verdict["arms"]:
        assert arm["name"] in text
        assert arm["command"] in text
        assert arm["status"] in text
    for seeds in verdict["fingerprints"].values():
        for pair in seeds.values():
            assert pair["initial_params_sha256"] in text
            assert pair["data_order_sha256"] in text
    for phrase in (
        "about emulated noise only",
        verdict["design"]["git_commit"],
        "0.10.2",
        "of a pilot of 4 control and 2 stale seeds",
        "sign flip, exact (all 64 patterns)",
        "loss not finite <nan>",
        "heavy ball",
        "3 more seeds are needed",
        "0, bit for bit",
        "p Holm: over all 7 contrasts of prednet",
    ):
        assert phrase in text, phrase


def test_the_answer_comes_first(built):
    page = (built / report.PAGE).read_text()
    body = page[page.index("<body>") :]
    assert body.index("hypothesis refuted") < body.index("<figure ")
    assert body.index("<figure ") < body.index("<table>")


def test_the_page_needs_nothing_beside_itself(built):
    page = (built / report.PAGE).read_text()
    assert page.count("<script") == 1
    assert f"<script>{page_script.SCRIPT}</script>" in page
    assert "</script" not in page_script.SCRIPT
    digest = hashlib.sha256(page_script.SCRIPT.encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}';" in page
    assert "http:" not in page
    assert "https:" not in page
    assert "url(" not in page
    sources = re.findall(r'(?:src|srcset)="([^"]{0,22})', page)
    # Three figures, two models, two themes; the slider's sheets: arms, truth, copy.
    assert len(sources) == 12 + (3 + 1 + 1) + (3 + 1)
    assert set(sources) == {"data:image/png;base64,"}
    links = set(re.findall(r'href="([^",]{0,28})', page))
    assert links == {"data:text/csv;charset=utf-8", *(f"#loss_{m}" for m in MODELS)}
    assert 'name="viewport"' in page


def test_the_same_records_give_the_same_bytes(built):
    found = report.load(built)
    for kind, draw in (
        ("loss", curves.loss_curves),
        ("frames", figures.frames),
    ):
        again = draw(found, theme.LIGHT, "autoencoder")
        assert again == (built / f"{kind}_autoencoder.png").read_bytes()


def test_figures_are_png(built):
    names = {path.name for path in built.glob("*.png")}
    assert names == {"finding.png"} | {
        f"{kind}_{model}.png"
        for kind in ("loss", "frames")
        for model in ("prednet", "autoencoder")
    }
    for name in names:
        with Image.open(built / name) as image:
            assert image.format == "PNG"
            assert min(image.size) > 200
            assert len(np.unique(np.asarray(image.convert("L")))) > 10
    assert not list(built.glob("*.tmp"))


def test_every_text_is_escaped(verdict, tmp_path):
    evil = "<script>alert('x')</script>&\"'"

    def poison(value, key=None):
        if isinstance(value, dict):
            return {k: poison(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [poison(v) for v in value]
        kept = key in ("model", "control", "verdict")
        return value + evil if isinstance(value, str) and not kept else value

    words = verdict["verdict"]
    bad = poison(verdict) | {"verdict": {m: w + evil for m, w in words.items()}}
    bad["verdict"][evil] = evil
    bad["design"][evil] = {evil: [evil, {evil: evil}]}
    bad["controls"][evil] = [{evil: evil}]
    (tmp_path / "verdict.json").write_text(json.dumps(bad))
    page = report.build(tmp_path).read_text()
    assert page.count("<script") == 1
    assert html.escape(evil) in page
    assert evil in text_of(page)


def test_the_least_that_a_verdict_has_is_enough(tmp_path, verdict):
    least = {
        "contrasts": [
            {
                name: verdict["contrasts"][0].get(name)
                for name in (
                    "model",
                    "treatment",
                    "control",
                    "metric",
                    "n",
                    "mean_difference",
                    "ci_low",
                    "ci_high",
                    "p_value",
                    "p_holm",
                    "tost_p",
                    "margin",
                    "verdict",
                )
            }
        ],
        "verdict": verdict["verdict"],
    }
    (tmp_path / "verdict.json").write_text(json.dumps(least))
    text = text_of(report.build(tmp_path).read_text())
    assert "No run with a loss curve was found" in text
    assert "No contrast was recorded" in text
    assert {path.name for path in tmp_path.iterdir()} == {
        "verdict.json",
        "report.html",
    }


def test_a_missing_control_or_arm_is_left_out(broken):
    for arm in ("reduction_order", "stale_targets", "float64"):
        shutil.rmtree(broken / "runs" / "prednet" / arm)
    shutil.rmtree(broken / "runs" / "autoencoder" / "float32")
    page = report.build(broken).read_text()
    assert (broken / "loss_prednet.png").exists()
    # Without the control there is nothing to draw an arm over.
    assert not (broken / "loss_autoencoder.png").exists()
    assert (broken / "frames_autoencoder.png").exists()
    assert "finding" not in [p.stem for p in broken.glob("loss*")]
    assert "PredNet" in text_of(page)


def test_nothing_is_written_when_a_record_is_broken(broken):
    (broken / "runs" / "prednet" / "ulp" / "seed_4" / "metrics.jsonl").write_text("{")
    with pytest.raises(RecordError, match="ulp"):
        report.build(broken)
    assert not list(broken.glob("*.png"))
    assert not (broken / report.PAGE).exists()


def test_frames_of_two_arms_must_be_the_same(broken):
    path = broken / "runs" / "prednet" / "stale_targets" / "seed_0" / "examples.npz"
    with np.load(path) as file:
        arrays = dict(file)
    arrays["frames"] = arrays["frames"][::-1]
    np.savez(path, **arrays)
    found = report.load(broken)
    with pytest.raises(RecordError, match="different frames"):
        figures.frames(found, theme.LIGHT, "prednet")


def test_band_is_the_middle_half_of_the_seeds(comparison):
    found = report.load(comparison)
    band = curves.band(found, "prednet", "float32")
    stack = np.stack(list(found.losses["prednet"]["float32"].values()))
    # The last point averages the last six of sixty updates; sums differ by rounding.
    last = np.percentile(stack[:, -6:].mean(1), [25, 50, 75])
    ends = [band.low[-1], band.middle[-1], band.high[-1]]
    np.testing.assert_allclose(ends, last, rtol=1e-12)
    assert band.update[-1] == 60
    assert curves.band(found, "prednet", "gpu") is None


def test_relative_band_pairs_the_seeds(comparison):
    found = report.load(comparison)
    arms = found.losses["prednet"]
    # Seeds that one arm lacks do not count.
    arms["stale_targets"].pop(3)
    band = finding.relative_band(found, "prednet", "stale_targets")
    a, b = (
        np.array([arms[name][s][-6:].mean() for s in (0, 1, 2, 4, 5)])
        for name in ("stale_targets", "float32")
    )
    # Running means over the last six of sixty updates; sums differ by rounding.
    ends = [band.low[-1], band.middle[-1], band.high[-1]]
    expected = np.percentile(100 * (a / b - 1), [25, 50, 75])
    np.testing.assert_allclose(ends, expected, rtol=1e-9)
    control = finding.relative_band(found, "prednet", "float32")
    assert not control.middle.any()
    assert finding.relative_band(found, "prednet", "gpu") is None


def test_panels_share_one_scale(comparison):
    found = report.load(comparison)
    low, high = finding._limits(found)
    for model in found.models:
        for arm in finding.drawn_arms(found, model).values():
            band = finding.relative_band(found, model, arm)
            if band is not None:
                assert low < band.middle.min()
                assert band.middle.max() < high


def test_plain_sentences_follow_the_verdict(verdict, tmp_path):
    for word, answer in answers.ANSWERS.items():
        verdict["verdict"]["prednet"] = word
        (tmp_path / "verdict.json").write_text(json.dumps(verdict))
        found = report.load(tmp_path)
        card = answers.card(found, "prednet")
        assert answer in card
        assert "about emulated noise only" in card
    verdict["details"]["prednet"] |= {"emulated_only": False, "more_noise_helps": [0.1]}
    verdict["details"]["autoencoder"]["emulated_only"] = False
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    found = report.load(tmp_path)
    assert "emulated noise only" not in answers.card(found, "prednet")
    limits = " ".join(answers.limits(found))
    assert "emulated noise only" not in limits
    assert "Gaussian noise of 0.1 times" in limits


def test_colours_follow_the_role():
    for look in theme.THEMES:
        assert theme.colour("control", look) == look.ink
        assert theme.colour("gaussian", look) == look.colours["gaussian"]
        assert theme.colour(None, look) == look.muted
        assert len(set(look.colours.values())) == len(look.colours)


def test_pngs_embedded_are_those_on_disk(built):
    page = (built / report.PAGE).read_text()
    for model in ("prednet", "autoencoder"):
        png = (built / f"loss_{model}.png").read_bytes()
        assert base64.b64encode(png).decode() in page
        assert Image.open(io.BytesIO(png)).mode == "P"
