"""What the fuzz tests share: number of inputs, broken files, accepted errors."""

import contextlib
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from prednet_jax.errors import UserError

TIMES = int(os.environ.get("FUZZ", "0"))


def amount(share):
    """Settings of one property: `share` inputs of a thousand, of which FUZZ are asked.

    In `make test` the same few inputs every time.
    """
    return settings(
        max_examples=share * TIMES if TIMES else max(10, share // 5),
        derandomize=not TIMES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def refused_on_one_line(*kinds):
    """Lets pass what a user can mend, if its message is one line of some words."""
    try:
        yield
    except (UserError, *kinds) as error:
        text = str(error)
        assert text
        assert "\n" not in text
        assert len(text) < 100_000  # Values of 5000 digits are quoted.


@st.composite
def edited(draw, contents):
    """One of some files with bytes changed, cut short or lengthened."""
    out = bytearray(draw(st.sampled_from(contents)))
    place = st.integers(0, len(out) - 1)
    for where, value in draw(
        st.lists(st.tuples(place, st.integers(0, 255)), max_size=6)
    ):
        out[where] = value
    stop = draw(st.one_of(st.just(len(out)), place))
    return bytes(out[:stop]) + draw(st.one_of(st.just(b""), st.binary(max_size=8)))
