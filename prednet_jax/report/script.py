"""The page's script, and the policy that lets it alone run.

What the page adds to its pictures: lines and seeds to switch, values to read, predicted
frames to move through. It draws the CSV files of the page and reaches for nothing else.
"""

import base64
import hashlib
from importlib import resources

_FILES = ("numbers.js", "drawing.js", "controls.js")


def _text() -> str:
    folder = resources.files(__package__) / "page_script"
    parts = [(folder / name).read_text(encoding="utf-8") for name in _FILES]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


#: The text of the one script element.
SCRIPT = _text()
_DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
#: Nothing from outside, no form, and no script but the one with this hash.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    f"script-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'"
)
