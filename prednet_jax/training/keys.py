"""One root seed, and one PRNG key per purpose.

The key of a purpose is the root key folded with a hash of the purpose's name, so a new
purpose never changes the key of another, and every arm of an experiment draws the same
initial weights and data order from the same seed.
"""

import zlib

import jax

from prednet_jax.errors import check_int, one_of

PURPOSES = ("init", "data", "noise", "probe")
IMPLEMENTATION = "threefry2x32"


def derive(seed: int, purpose: str) -> jax.Array:
    """Returns the PRNG key (threefry2x32) of a seed for one of `PURPOSES`."""
    check_int("seed", seed, 0, 2**32 - 1)
    one_of("purpose", purpose, PURPOSES)
    root = jax.random.key(seed, impl=IMPLEMENTATION)
    return jax.random.fold_in(root, zlib.crc32(purpose.encode()))
