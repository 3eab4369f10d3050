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

from prednet_jax.noise import compat
from prednet_jax.noise.arithmetic import random_bits


class Words(NamedTuple):
    """The generator's words at one place of a program.

    Attributes:
        call: uint32 [2], folded with the loop counters.
        run: uint32 [2], the same at each step of a loop.
    """

    call: Array
    run: Array

    def at_step(self, step: Array) -> Words:
        """The words of one step of a loop, which an integer numbers."""
        return Words(random_bits.fold(self.call, step), self.run)

    def chosen(self, number: Array) -> Words:
        """Other words, for each number."""
        return Words(*(random_bits.fold(w, number) for w in self))

    def of(self, schedule: str) -> Array:
        """Those that orders are drawn from; see `ReductionOrder.schedule`."""
        return self.run if schedule == "run" else self.call


def first_words(key: Array, run_key: Array | None = None) -> Words:
    """The words at the beginning of a call.

    Args:
        key: of the call.
        run_key: of the run; None: the call is a run of its own.

    Raises:
        NoiseError: when one is no PRNG key.
    """
    return Words(
        random_bits.words(key), random_bits.words(key if run_key is None else run_key)
    )


def path_salt(path: str) -> tuple[int, int]:
    """A path as two 32-bit words, the same in every process."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def on_device(
    words: Words, operands: Sequence[Any], shared_over: Collection[str] = ()
) -> Words:
    """The words of this device, where the operands vary over a mesh.

    Args:
        words: those that all devices share.
        operands: of the equation.
        shared_over: axes over which the result, and so its noise, must be the same.
    """
    axes = set(compat.varying_axes(*operands)) - set(shared_over)
    if not axes:
        return words
    index = lax.axis_index(tuple(sorted(axes)))
    return Words(*(random_bits.fold(w, index) for w in words))
