"""The marks of all documents have what the records say, which are judged anew."""

from scipy import stats

from prednet_jax import records
from prednet_jax.report import documents
from study import document_tables, judgement, make_tables
from study import tables as study_tables


def test_tables_numbers_and_figures_are_those_of_the_records():
    def recorded(part, endpoint):
        study = make_tables.STUDY
        folder = study if part == make_tables.ANSWER.name else study / part
        own = make_tables.PARTS[part].endpoint
        suffix = "" if endpoint == own else f"_{endpoint}"
        return records.read_json(folder / f"verdict{suffix}.json")

    parts = study_tables.load(make_tables.STUDY)
    verdicts = {
        part: {
            endpoint: recorded(part, endpoint)
            for endpoint in judgement.endpoints(make_tables.PARTS[part])
        }
        for part in study_tables.JUDGED
    }
    made = make_tables.tables(parts, verdicts) | study_tables.values(
        make_tables.STUDY, parts, verdicts
    )
    for path in make_tables.pages():
        assert documents.fill(path.read_text(), made) == path.read_text(), path
    for path, content in make_tables.figures(parts, verdicts).items():
        assert path.read_bytes() == content, path


def test_the_mean_of_the_seeds_has_students_interval():
    found = {"peer": 9.0, "walk-64": 0.7, "walk-b-0": 0.4, "walk-b-1": 0.5}
    splits = ("validation", "test", "unseen")
    ratios = {n: dict.fromkeys(splits, x) for n, x in found.items()}
    text = document_tables.learned_seeds(ratios)
    low, high = stats.t.interval(0.95, 1, 0.45, 0.05)
    mean = f"0.450 [{low:.3f}, {high:.3f}]"
    assert text.splitlines()[2:] == [
        "| peer | 1 | 9.000 | 9.000 | 9.000 |",
        "| walk-64 | 1 | 0.700 | 0.700 | 0.700 |",
        f"| walk-b | 2 | {mean} | {mean} | {mean} |",
    ]
