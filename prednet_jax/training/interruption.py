"""SIGTERM, SIGHUP and Ctrl-C: obeyed at once, or noted while a run can be saved.

A thread reads the signals from a pipe that Python's C handler writes to, so that one is
obeyed while the main thread compiles or computes.
"""

import os
import signal
import sys
import threading

from prednet_jax.errors import say

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Interruption:
    """Takes the signals over while a `with` block runs in the main thread.

    A signal that was ignored before, as under `nohup`, stays ignored. `noted` is the
    signal that came while deferred.
    """

    def __init__(self) -> None:
        self.noted: signal.Signals | None = None
        self._deferred = False

    def __enter__(self) -> "Interruption":
        taken = [s for s in SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
        # The handler itself does nothing; without one there is nothing in the pipe.
        self._before = {s: signal.signal(s, lambda *_: None) for s in taken}
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._writing)
        self._watcher.join()
        os.close(self._reading)

    def defer(self) -> None:
        """From now on a signal is noted; a second one ends the process."""
        self._deferred = True

    def obey(self, message: str) -> None:
        """Ends the process, with status 128 + number, if a signal was noted.

        What is not written by then is lost. From now on a signal ends it at once.
        """
        self._deferred = False
        if self.noted is not None:
            _leave(self.noted, message)

    def _watch(self) -> None:
        while received := os.read(self._reading, 1):
            if received[0] not in self._before:
                continue
            number = signal.Signals(received[0])
            if not self._deferred or self.noted is not None:
                _leave(number, "left at once")
            self.noted = number
            say(f"{number.name}: saving after this update")


def _leave(number: signal.Signals, message: str) -> None:
    say(f"interrupted by {number.name}: {message}")
    sys.stdout.flush()
    # Not sys.exit: threads of the data, of XLA and of orbax would be waited for.
    os._exit(128 + number)
