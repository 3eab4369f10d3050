"""One root seed, and a named PRNG key for each purpose.

Each key is a fold of the root key by a hash of its name, so a new name never changes
another's key, and no backend, arm or process enters: every arm of an experiment draws
the same initial weights and the same data order from the same seed. ("Streams" of
frames, which a batch is made of, are another thing: `data.streams`.)
"""

import zlib

import jax

from prednet_jax.errors import one_of, whole

STREAMS = ("init", "data", "noise", "probe")
IMPLEMENTATION = "threefry2x32"


def stream(seed: int, name: str) -> jax.Array:
    """The key of one purpose.

    Args:
        seed: the root seed of the run, 0 <= seed < 2^32.
        name: one of `STREAMS`.

    Returns:
        A typed PRNG key (threefry2x32, whatever the process's default is).

    Raises:
        UserError: the seed or the name is outside what is accepted.
    """
    whole("seed", seed, 0, 2**32 - 1)
    one_of("stream", name, STREAMS)
    root = jax.random.key(seed, impl=IMPLEMENTATION)
    return jax.random.fold_in(root, zlib.crc32(name.encode()))
