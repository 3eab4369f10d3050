"""Which random words an equation draws from: key, path, loop counters and device.

An equation's noise is a hash of the key, of its path in the program and of the counters
of the loops around it. The path is hashed while tracing and costs nothing at run time;
a loop folds its counter into two words once a step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from jax import Array, lax

from prednet_jax.noise import compat, random_bits


class State(NamedTuple):
    """The generator's words.

    Attributes:
        call: uint32 [2], folded with the loop counters.
        run: uint32 [2], the same at each step of a loop.
    """

    call: Array
    run: Array


def initial_state(key: Array, run_key: Array | None = None) -> State:
    """The generator's words at the beginning of a call.

    Args:
        key: of the call.
        run_key: of the run; None: the call is a run of its own.
    """
    words = [_words(key), _words(key if run_key is None else run_key)]
    return State(*words)


def _words(key: Array) -> Array:
    if not hasattr(key, "dtype"):
        raise ValueError(f"key={key!r}: expected a PRNG key, such as jax.random.key(0)")
    return random_bits.words(key)


def path_salt(path: str) -> tuple[int, int]:
    """A path as two 32-bit words, the same in every process."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def at_step(state: State, step: Array) -> State:
    """The words of one step of a loop."""
    return State(random_bits.fold(state.call, step), state.run)


def on_device(
    state: State, operands: Sequence[Any], shared_over: Collection[str] = ()
) -> State:
    """The words of this device, where the operands vary over a mesh.

    Args:
        state: words that all devices share.
        operands: of the equation.
        shared_over: axes over which the result, and so its noise, must be the same.
    """
    axes = set(compat.varying_axes(*operands)) - set(shared_over)
    if not axes:
        return state
    index = lax.axis_index(tuple(sorted(axes)))
    return State(*(random_bits.fold(words, index) for words in state))
