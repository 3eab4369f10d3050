"""Sources of frames: generated from embedded pictures, or read from disk.

`open_source` opens any of them; `prednet_jax.data.windows` cuts them into the windows
of truncated back-propagation. Nothing here imports JAX. A large library (PyAV, Pillow,
scikit-learn, tensorflow-datasets) is imported only by the source that needs it.
"""

from prednet_jax.data.frames import CROPS, FrameSource
from prednet_jax.data.sources import (
    NAMES,
    NamedSource,
    open_source,
    open_split,
    own_size,
    split_parts,
)
from prednet_jax.data.splits import SPLITS
from prednet_jax.data.windows import (
    Schedule,
    never_seen,
    order_fingerprint,
    random_windows,
    schedule,
)

__all__ = [
    "CROPS",
    "NAMES",
    "SPLITS",
    "FrameSource",
    "NamedSource",
    "Schedule",
    "never_seen",
    "open_source",
    "open_split",
    "order_fingerprint",
    "own_size",
    "random_windows",
    "schedule",
    "split_parts",
]
