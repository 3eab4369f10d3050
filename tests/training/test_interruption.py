"""Which signals end a run, and which are one request."""

import os
import signal

import pytest

from prednet_jax.training import interruption


@pytest.fixture
def signals(monkeypatch):
    """An interruption that sees signals by name at a time, without threads."""
    clock, left = [100.0], []
    monkeypatch.setattr(interruption.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(interruption, "_leave", lambda *a: left.append(a))
    own = interruption.Interruption()
    own._before = {signal.SIGTERM: None, signal.SIGINT: None}

    def send(*numbers, at):
        clock[0] = at
        own._reading, writing = os.pipe()
        os.write(writing, bytes(numbers))
        os.close(writing)
        own._watch()
        os.close(own._reading)
        return len(left)

    return own, send


def test_signals_within_a_second_are_one_request(signals, capsys):
    own, send = signals
    own.defer()
    assert send(signal.SIGTERM, signal.SIGTERM, at=100) == 0
    assert send(signal.SIGINT, at=100.9) == 0
    assert own.noted is signal.SIGTERM
    assert capsys.readouterr().err.count("saving after this update") == 1
    own.save()
    assert send(signal.SIGINT, at=105) == 0  # It is being saved.


def test_a_later_signal_ends_a_run_that_is_not_being_saved(signals):
    own, send = signals
    own.defer()
    assert send(signal.SIGTERM, at=100) == 0
    assert send(signal.SIGTERM, at=101.5) == 1


def test_before_the_first_update_one_signal_ends_it(signals):
    _, send = signals
    assert send(signal.SIGTERM, at=100) == 1
