import base64
import csv
import hashlib
import html
import io
import json
import re
import shutil
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from prednet_jax import report
from prednet_jax.records.verdict import Verdict
from prednet_jax.report import page as pages

VOID = {"meta", "img", "input", "br", "link"}
MODELS = ("prednet", "autoencoder")


class Balance(HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.text = []

    def handle_starttag(self, tag, attrs):
        self.text.append(" " if tag in ("td", "th", "dt", "dd", "p") else "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def text_of(page: str) -> str:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return re.sub(r"\s+", " ", "".join(parser.text)).replace("\xa0", " ")


@pytest.fixture(scope="module")
def page(built):
    return (built / report.PAGE).read_text()


def csv_of(page: str, name: str) -> list[list[str]]:
    """The rows of a file that the page holds."""
    held = re.search(f'download="{name}.csv" href="data:[^,]*,([^"]*)"', page)[1]
    return list(csv.reader(io.StringIO(unquote(html.unescape(held)))))


def specs(page: str) -> list[dict]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', page)
    return [json.loads(text) for text in found]


def test_the_page_holds_verdicts_arms_and_commands(page, verdict):
    text = text_of(page)
    assert "running mean over 6 updates" in text
    assert "The decision rule calls this refuted" in text
    assert "The decision rule calls this inconclusive" in text
    for arm in verdict["arms"]:
        for said in (arm["name"], arm["command"], arm["status"]):
            assert said in text
    for phrase in (
        "about emulated noise only",
        verdict["design"]["git_commit"],
        "0.10.2",
        "2 % of the control's mean loss",
        "sign flip (exact, all 2^6 patterns)",
        "loss not finite <nan>",
        "0, bit for bit",
        "p Holm: over all 7 contrasts of prednet",
        "stale_targets +0.00965 [+0.0077, +0.012]",
    ):
        assert phrase in text, phrase
    # The word of the rule is no headline.
    body = page[page.index("<body>") :]
    assert body.index("<figure>") < body.index("refuted") < body.index("<table>")
    headings = re.findall(r"<h\d[^>]*>(.*?)</h\d>", body, re.DOTALL)
    assert not [h for h in headings if "refuted" in h or "inconclusive" in h]


def test_the_page_needs_nothing_beside_itself(page, built):
    text = pages.script()
    assert f'<script type="module">{text}</script>' in page
    assert page.count("<script") == 1 + page.count('<script type="application/json">')
    assert "</script" not in text
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in html.unescape(page)
    assert "default-src 'none'" in html.unescape(page)
    page = page.replace(text, "")
    sources = re.findall(r'\s(?:src|srcset)="([^"]{0,22})', page)
    assert sources == ["data:image/png;base64,"] * 2
    links = set(re.findall(r'href="([^",]{0,28})', page))
    assert links == {"data:text/csv;charset=utf-8", *(f"#loss_{m}" for m in MODELS)}
    assert 'name="viewport"' in page
    assert (built / report.PAGE).stat().st_size < 3e6
    assert not list(built.glob("*.tmp"))


def test_every_figure_has_its_words_its_data_and_its_command(page, verdict):
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert len(figures) == 6
    for one in figures:
        assert "data:text/csv" in one or 'href="#loss_' in one or "<img" in one
        assert verdict["design"]["command"] in one
        assert "<figcaption>" in one
    said = [spec["description"] for spec in specs(page)]
    assert len(said) == 4
    assert all("stale_targets +0.00965" in alt for alt in said if "PredNet" in alt)
    assert all("stale_targets 0, bit for bit" in alt for alt in said if "Auto" in alt)
    assert all(re.findall(r'<img alt="([^"]+)"', page))

    # Colours follow light and dark.
    style = (page[page.index("<style>") : page.index("</style>")]).split("@media")
    names = set(re.findall(r"var\(--(\w+)\)", json.dumps(specs(page))))
    assert {"ink", "muted", "line", "stale", "treatment"} <= names
    assert not re.findall(
        r'"#[0-9a-fA-F]{6}"', json.dumps([s["layer"] for s in specs(page)])
    )
    for name in names:
        assert f"--{name}:" in style[0], name


def test_a_figure_can_be_made_again_from_its_file(page, comparison):
    found = report.load(comparison)
    for model in MODELS:
        rows = csv_of(page, f"loss_{model}")
        assert rows[0][0] == "update"
        column = rows[0].index("stale_targets 3")
        arm = found.losses[model]["stale_targets"][3]
        assert int(rows[-1][0]) == len(arm) == 60
        # Nine digits are written.
        assert float(rows[-1][column]) == pytest.approx(arm[-6:].mean(), rel=1e-8)


def test_claims_are_shown_as_the_verdict_has_them(verdict, tmp_path):
    helps = {"claim": "random order of sums changes the loss", "model": "prednet"}
    helps |= {"answer": "cannot tell", "estimate": -0.02, "low": None, "high": None}
    helps |= {"published": {"estimate": -0.3, "low": -0.5, "high": -0.1}}
    helps |= {"predicted": [-0.01, 0.01], "holds": False}
    stale = {"claim": "stale targets raise the loss (a <b>)", "model": "autoencoder"}
    stale |= {"answer": "same bits", "holds": True}
    stale |= dict.fromkeys(("estimate", "low", "high"), 0.0)
    stale |= dict.fromkeys(("published", "predicted"))
    verdict["claims"] = [helps, stale]
    verdict["contrasts"][-1]["p_holm_family"] = None  # As that of the rule has it.
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    page = report.build(tmp_path).read_text()
    text = text_of(page[page.index("<section><h2>Cl") : page.index("<section><h2>Wh")])
    for said in (
        "random order of sums changes the loss",
        "stale targets raise the loss (a <b>)",
        "PredNet cannot tell -2.0 % -30 % [-50 % to -10 %] -1.0 % to +1.0 % no",
        "Nothing is published or predicted for Autoencoder: ",
        "Autoencoder same bits 0.0 % [0.0 % to 0.0 %] - - yes",
    ):
        assert said in text, said
    assert "over None" not in text_of(page)


def test_every_text_is_escaped(verdict, tmp_path):
    evil = "</script><script>alert('x')</script>&\"'"

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
    (tmp_path / "verdict.json").write_text(json.dumps(bad))
    page = report.build(tmp_path).read_text()
    assert "<script>alert" not in page
    assert page.count("</script>") == page.count("<script")
    assert evil in text_of(page)


def test_the_least_that_a_verdict_has_is_enough(tmp_path, verdict):
    names = "model treatment control metric n mean_difference ci_low ci_high p_value"
    names = [*names.split(), "p_holm", "tost_p", "margin", "verdict"]
    contrast = {name: verdict["contrasts"][0].get(name) for name in names}
    least = {"contrasts": [contrast], "verdict": verdict["verdict"]}
    (tmp_path / "verdict.json").write_text(json.dumps(least))
    page = report.build(tmp_path).read_text()
    assert page == report.build(tmp_path).read_text()
    text = text_of(page)
    assert "No run with a loss curve was found" in text
    assert "No contrast was recorded" in text
    other = least | {"contrasts": [contrast | {"control": "gpu"}]}
    shown = report.text_table(Verdict.from_json(other))
    assert "\n- gpu\n" in shown
    assert {path.name for path in tmp_path.iterdir()} == {"verdict.json", "report.html"}


def test_a_missing_control_or_arm_is_left_out(broken):
    for arm in ("reduction_order", "stale_targets", "float64"):
        shutil.rmtree(broken / "runs" / "prednet" / arm)
    shutil.rmtree(broken / "runs" / "autoencoder" / "float32")
    page = report.build(broken).read_text()
    # Without the control there is nothing to draw an arm over.
    assert 'id="loss_prednet"' in page
    assert 'id="loss_autoencoder"' not in page
    assert page.count('src="data:image/png') == 2
    assert "float64 0" not in csv_of(page, "loss_prednet")[0]
