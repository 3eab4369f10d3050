"""The marks of all documents have what the records say, which are judged anew."""

from prednet_jax import records
from prednet_jax.report import documents
from study import judgement, make_tables
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
