"""Headless Chromium, driven by its own DevTools protocol through a pair of pipes.

No client library and no port: with --remote-debugging-pipe the browser reads messages
from file descriptor 3 and writes them to 4, each a JSON object that ends with a zero
byte (https://chromedevtools.github.io/devtools-protocol/).
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
#: Keys as the protocol names them: code of the key, and the text it types.
KEYS = {
    "Tab": (9, ""),
    "Space": (32, " "),
    "ArrowLeft": (37, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
}


def find() -> str | None:
    """Path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page of a browser, and what it complained of."""

    def __init__(self, out: int, into: int):
        self._out, self._into = out, into
        self._rest, self._number, self._session = b"", 0, None
        self.complaints: list[str] = []
        found = self.call("Target.createTarget", url="about:blank")
        attached = self.call(
            "Target.attachToTarget", targetId=found["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params) -> dict:
        """Sends a message and waits for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict:
        while b"\0" not in self._rest:
            more = os.read(self._into, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        one, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(one)
        said = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded":
            self.complaints.append(json.dumps(said["entry"]))
        elif message.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(said["args"]))
        return message

    def open(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Loads a file in a window of so many pixels; offline."""
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[theme])
        self.resize(width)
        self.call("Page.navigate", url=path.as_uri())
        give_up = time.monotonic() + 30
        while self.value("location.href + document.readyState") != (
            path.as_uri() + "complete"
        ):
            assert time.monotonic() < give_up, f"{path} does not load"
        self.frame()

    def resize(self, width: int) -> None:
        """Makes the window so wide, as a phone's or a desk's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )

    def frame(self) -> None:
        """Waits until observers have run and the page is painted."""
        self.value("new Promise(r => requestAnimationFrame(() => setTimeout(r)))")

    def value(self, expression: str):
        """What JavaScript gives; the promise's value of a promise."""
        done = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def press(self, key: str) -> None:
        """Presses a key and lets it go."""
        code, text = KEYS[key]
        named = {
            "key": text or key,
            "code": key,
            "windowsVirtualKeyCode": code,
            "text": text,
        }
        down = "keyDown" if text else "rawKeyDown"
        self.call("Input.dispatchKeyEvent", type=down, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)
        self.frame()


@contextmanager
def browse(profile: Path) -> Iterator[Page]:
    """A page of a browser of its own, which ends with the block.

    Args:
        profile: an empty directory for the browser.
    """
    command = find()
    assert command is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # The shell puts the pipes where the browser looks for them.
    shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "-", command, *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        os.close(ours_out)  # The browser ends with its pipe.
        os.close(ours_in)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
