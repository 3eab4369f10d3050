"""A barrier that XLA's CPU fusion respects.

XLA's CPU backend fuses the computation of a value into each of its consumers, and drops
`optimization_barrier` before it does. A noisy result that two equations read would so
be computed twice, its random bits included; along a chain of such results the program
doubles at each link, in the time to compile it as well as in the time to run it. Only
loops and branches end a fusion: here a branch whose condition is always true. XLA does
not know: it looks for constants before it drops `optimization_barrier`, not after.

The condition depends on no argument. So the branch stays one under `vmap`, over keys as
well, where a mapped condition would make it a selection; and the bits stay the same,
since fusion also decides in which order XLA itself adds.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import Array, lax


def materialised(x: Array) -> Array:
    """`x`, computed once; where XLA's barrier is respected (GPUs), `x` as it is.

    Args:
        x: array of any shape and type.
    """
    # Few elements count too: where they are broadcast, each copy would compute them. A
    # scalar is moved out of such loops by the compiler.
    if x.size < 2 or jax.default_backend() != "cpu":
        return x
    always = lax.optimization_barrier(np.uint32(0)) == np.uint32(0)
    # Two different branches, or the compiler would see one.
    return lax.cond(always, lambda x: x, lax.neg, x)
