import pytest
from markdown_it import MarkdownIt

from prednet_jax.errors import UserError
from study import marks

TEXT = "before\n<!-- table: costs -->\nold\n<!-- end -->\nafter\n"
MADE = {"costs": "| new |"}


def test_tables_are_replaced_and_nothing_else():
    filled = marks.fill(TEXT, MADE)
    assert filled == "before\n<!-- table: costs -->\n\n| new |\n\n<!-- end -->\nafter\n"
    assert marks.fill(filled, MADE) == filled
    text = TEXT + TEXT.replace("costs", "gaps")
    assert marks.names(text) == {"costs", "gaps"}
    filled = marks.fill(text, MADE | {"gaps": "| gaps |"})
    assert filled.index("| new |") < filled.index("| gaps |")


def test_a_number_in_a_sentence_is_replaced_and_a_line_break_in_it_stays():
    text = "It is <!--=gap-->1 %\n[0, 2]<!--/-->, **<!--=n-->five<!--/-->**.\n"
    assert marks.names(text) == {"gap", "n"}
    assert marks.fill(text, {"gap": "1 % [0, 2]", "n": "five"}) == text
    filled = marks.fill(text, {"gap": "3 %", "n": "six"})
    assert filled == "It is <!--=gap-->3 %<!--/-->, **<!--=n-->six<!--/-->**.\n"
    page = MarkdownIt("commonmark").render(text)
    assert page.startswith("<p>It is <!--=gap-->1 %")
    assert "<strong>" in page


def test_marks_that_are_not_closed_or_would_not_show_are_refused():
    for text, said in (
        ("<!-- table: costs -->\n| a |\n", "not closed"),
        ("<!-- table: a -->\n<!-- table: b -->\n<!-- end -->\n", "not closed"),
        ("<!-- table: two words -->\n<!-- end -->\n", "no proper name"),
        ("It is <!--=gap-->1 %.\n\nMore<!--/-->", "not closed"),
        ("It is <!--=gap-->1 <!--=n-->2<!--/-->", "not closed"),
        ("It is <!--=two words-->1<!--/-->", "no proper name"),
        # Markdown takes such a line for HTML and ends the paragraph.
        ("It is\n<!--=gap-->1 %<!--/--> here", "begins a line"),
        ("- <!--=gap-->1 %<!--/--> here", "begins a line"),
        ("It is <!--=gap-->1 %\n<!--/--> here", "begins a line"),
    ):
        with pytest.raises(UserError, match=said):
            marks.names(text)
