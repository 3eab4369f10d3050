"""What a training says of itself while it runs: on a terminal, and in a pipe."""

import io
import re
import sys

import pytest

from prednet_jax import records
from prednet_jax.messages import say
from prednet_jax.training.keeping import reached
from prednet_jax.training.loop import UpdateRecord
from prednet_jax.training.observe import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(update, loss=0.02, copied=0.01):
    return UpdateRecord(update, 0, loss, loss, copied, 1.0, 0.0)


@pytest.fixture
def stderr(monkeypatch):
    def use(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return use


def test_a_pipe_gets_whole_lines_now_and_then(stderr):
    pipe = stderr(io.StringIO())
    often = Progress("prednet seed 0", 40, 10, seconds=0)
    often.update(record(11))  # It compiles: nothing is said of its rate.
    often.update(record(12))
    seldom = Progress("prednet seed 1", 40, seconds=1000)
    seldom.update(record(1))
    seldom.update(record(2))
    often.close()
    (line,) = pipe.getvalue().splitlines()
    pattern = (
        r"prednet seed 0: update 12 of 40, [\d.e+]+ a second, \d+ s left, "
        r"loss 0.02000 \(2.00 of copying\)"
    )
    assert re.fullmatch(pattern, line)
    assert pipe.getvalue().endswith("\n")


def test_a_terminal_gets_a_bar_and_no_message_is_glued_to_it(stderr):
    screen = stderr(Terminal())
    bar = Progress("prednet", 3)
    bar.update(record(1), record(1, copied=0.03))
    say("careful")
    before, after = screen.getvalue().split("careful\n")
    # The bar's line is wiped before the message and drawn anew behind it.
    assert re.search(r"\r *\r$", before)
    assert "1/3" in after
    assert "loss=" not in after
    assert "loss 0.02000 (1.00 of copying)" in after
    bar.close()


def test_images_and_other_loops_have_no_ratio(stderr):
    pipe = stderr(io.StringIO())
    images = Progress("autoencoder", 4, seconds=0)
    programs = Progress("programs", 4, unit="program", seconds=0)
    for update in (1, 2):
        images.update(record(update, copied=None))
    for _ in range(2):
        programs.update()
    first, second = pipe.getvalue().splitlines()
    assert first.endswith("loss 0.02000")
    assert second.startswith("programs: program 2 of 4")


def test_nothing_is_said_where_nothing_is_wanted(stderr):
    for stream in (io.StringIO(), Terminal()):
        stderr(stream)
        quiet = Progress("prednet", 3, shown=False, seconds=0)
        quiet.update(record(1))
        quiet.close()
        assert stream.getvalue() == ""


def test_the_closing_line_is_of_all_updates_of_a_resumed_run(tmp_path):
    """It was of those of the last process: here of the last two, or of none."""
    losses = [9.0, *[3.0] * 7, 5.0, 1.0]
    for updates, expected in ((10, ", loss 3.00 of copying the last frame's"), (1, "")):
        writer = records.MetricsWriter(tmp_path)
        for update, loss in enumerate(losses[:updates], 1):
            copied = 1.0 if updates > 1 else None
            writer.write(update=update, loss=loss, copy_last_frame_loss=copied)
        writer.close()
        records.write_json(tmp_path / records.MANIFEST, {})
        assert reached(tmp_path) == expected
