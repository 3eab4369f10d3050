"""Lines on stderr that may meet a progress bar there."""

import sys


def say(text: str) -> None:
    """Writes one line on stderr, above a progress bar and not into it."""
    bars = sys.modules.get("tqdm")
    if bars is None:  # Nothing has drawn one.
        print(text, file=sys.stderr, flush=True)
        return
    with bars.tqdm.external_write_mode(file=sys.stderr):
        print(text, file=sys.stderr, flush=True)
