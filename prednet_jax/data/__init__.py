"""Sources of frames: generated from embedded pictures, or read from disk.

`open_source` opens any of them; `prednet_jax.data.windows` cuts them into the windows
of truncated back-propagation. Nothing here imports JAX. A large library (PyAV, Pillow,
scikit-learn, tensorflow-datasets) is imported only by the source that needs it.
"""

from prednet_jax.data.frames import CROPS as CROPS
from prednet_jax.data.frames import FrameSource as FrameSource
from prednet_jax.data.sources import NAMES as NAMES
from prednet_jax.data.sources import NamedSource as NamedSource
from prednet_jax.data.sources import open_source as open_source
from prednet_jax.data.sources import open_split as open_split
from prednet_jax.data.sources import own_size as own_size
from prednet_jax.data.sources import split_parts as split_parts
from prednet_jax.data.splits import SPLITS as SPLITS
from prednet_jax.data.windows import Schedule as Schedule
from prednet_jax.data.windows import never_seen as never_seen
from prednet_jax.data.windows import order_fingerprint as order_fingerprint
from prednet_jax.data.windows import random_windows as random_windows
from prednet_jax.data.windows import schedule as schedule
