"""SIGTERM, SIGHUP and Ctrl-C: obeyed at once, or recorded until a run is saved.

Signals within a second count as one: `timeout`, launchers and terminals signal a
process and its group, so that it gets two. A thread reads the signals from a pipe that
Python's C handler writes to, so that one is obeyed while the main thread computes.
"""

import os
import signal
import sys
import threading
import time

from prednet_jax.errors import log_line

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
# Signals that come within so many seconds of the first are the same request.
SAME_SECONDS = 1.0


class Interruption:
    """Handler of the signals while a `with` block runs in the main thread.

    A signal that was ignored before, as under `nohup`, stays ignored. `noted` is the
    signal that arrived after `defer`.
    """

    def __init__(self) -> None:
        self.noted: signal.Signals | None = None
        self._noted_at = 0.0
        self._deferred = self._saving = False

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
        """Notes signals from now on; a second, later signal ends the process."""
        self._deferred, self._saving = True, False

    def save(self) -> None:
        """Ignores signals until `obey`, so that a save in progress is completed."""
        self._saving = True

    def obey(self, message: str) -> None:
        """Ends the process, with status 128 + number, if a signal was noted.

        Records that are not written by then are lost. From now on a signal ends the
        process at once.
        """
        self._deferred = self._saving = False
        if self.noted is not None:
            _leave(self.noted, message)

    def _watch(self) -> None:
        while received := os.read(self._reading, 1):
            if received[0] not in self._before:
                continue
            number = signal.Signals(received[0])
            if not self._deferred:
                _leave(number, "left at once")
            if self.noted is None:
                self.noted, self._noted_at = number, time.monotonic()
                log_line(
                    f"{number.name}: saving after this update; another signal, a "
                    "second or more from now, ends the run without saving"
                )
            elif time.monotonic() - self._noted_at > SAME_SECONDS and not self._saving:
                _leave(number, "left at once, without saving")


def _leave(number: signal.Signals, message: str) -> None:
    log_line(f"interrupted by {number.name}: {message}")
    sys.stdout.flush()
    # Not sys.exit: threads of the data, of XLA and of orbax would be waited for.
    os._exit(128 + number)
