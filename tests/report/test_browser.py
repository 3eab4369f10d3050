"""The page in headless Chromium: it is drawn without a complaint, offline, by keyboard.

Chromium is driven by its own DevTools protocol through a pair of pipes, without a
client library or a port: with --remote-debugging-pipe it reads messages from file
descriptor 3 and writes them to 4, each a JSON object that ends with a zero byte
(https://chromedevtools.github.io/devtools-protocol/).
"""

import json
import os
import shutil
import subprocess
import time

import pytest

from prednet_jax import report

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
FLAGS += ("--disable-dev-shm-usage", "--remote-debugging-pipe")
# Two of relative losses, two of losses.
PLOTS = 4


class Page:
    """One page of a browser, and what it complained of."""

    def __init__(self, out, into):
        self._out, self._into = out, into
        self._rest, self._number, self._session = b"", 0, None
        self.complaints = []
        found = self.call("Target.createTarget", url="about:blank")
        attached = self.call(
            "Target.attachToTarget", targetId=found["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Sends a message and waits for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                more = os.read(self._into, 1 << 16)
                assert more, "the browser has ended"
                self._rest += more
            one, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            heard = ("Runtime.exceptionThrown", "Log.entryAdded")
            if answer.get("method") in (*heard, "Runtime.consoleAPICalled"):
                self.complaints.append(json.dumps(answer["params"]))

    def value(self, expression):
        """What JavaScript gives; the promise's value of a promise."""
        options = {"returnByValue": True, "awaitPromise": True}
        done = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def until(self, expression, wanted):
        give_up = time.monotonic() + 30
        while self.value(expression) != wanted:
            assert time.monotonic() < give_up, (expression, self.value(expression))
            self.value("new Promise(r => setTimeout(r, 100))")

    def open(self, path, width, theme):
        """Loads a file in a window of so many pixels; waits until it is drawn."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.call("Emulation.setEmulatedMedia", media="", features=features)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=path.as_uri())
        self.until("location.href + document.readyState", f"{path.as_uri()}complete")
        self.until("document.querySelectorAll('.plot svg').length", PLOTS)

    def press(self, code, key, text=""):
        named = {"key": text or key, "code": key, "windowsVirtualKeyCode": code}
        down = "keyDown" if text else "rawKeyDown"
        self.call("Input.dispatchKeyEvent", type=down, text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)


@pytest.fixture
def page(tmp_path):
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # The shell puts the pipes where the browser looks for them.
    shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "-", CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path}"],
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


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get: chromium)")
def test_the_page_is_drawn_fits_and_is_worked_by_keyboard(page, built):
    for width, theme in ((390, "dark"), (1200, "light")):
        page.open(built / report.PAGE, width, theme)
        assert page.value(
            "[...document.images].every(i => i.complete && i.naturalWidth)"
        )
        assert page.value("document.documentElement.scrollWidth") == width
        # No figure is wider than its place.
        assert page.value(
            "[...document.querySelectorAll('.plot')].every(p => "
            "p.querySelector('svg').getBoundingClientRect().width <= p.clientWidth + 1)"
        )
    lines = "document.querySelector('.plot').querySelectorAll('.mark-line path').length"
    before = page.value(lines)
    page.value("document.querySelector('.plot input[type=checkbox]').focus()")
    page.press(9, "Tab")
    page.press(32, "Space", " ")
    page.until(lines, before - 1)
    assert page.complaints == []
