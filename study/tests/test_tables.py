"""The marks of all documents have what the records say, which are judged anew."""

import pytest

from prednet_jax import errors
from study import __main__ as study
from study import make_tables, marks
from study import tables as study_tables


@pytest.mark.slow
def test_tables_numbers_and_figures_are_those_of_the_records():
    """`make tables` does the same."""
    records = study_tables.Study(make_tables.STUDY)
    texts, files = make_tables.makers(records), make_tables.figures(records)
    pages = make_tables.package.pages()
    before = {page: page.read_bytes() for page in [*pages, *files]}
    assert make_tables.package.renew(texts, files, [])
    assert before == {page: page.read_bytes() for page in before}


def test_a_name_makes_one_table_alone_and_a_slip_is_noticed(capsys):
    assert study.main(["tables", "learned"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "docs/learned.md: 1 texts",
        "docs/learned.svg",
    ]
    assert study.main(["tables", "lerned"]) == 2
    assert "'lerned': expected a name such as learned" in capsys.readouterr().err


def test_marks_are_checked_before_anything_is_made(tmp_path):
    def maker():
        raise AssertionError("made")

    page = tmp_path / "page.md"
    page.write_text("A number: <!--=slip-->1<!--/-->.\n")
    with pytest.raises(errors.UserError, match="mark 'slip': expected one of"):
        marks.renew([page], {"name": maker}, root=tmp_path)
    page.write_text("No number.\n")
    with pytest.raises(errors.UserError, match="made, and in no document: name"):
        marks.renew([page], {"name": maker}, root=tmp_path)
