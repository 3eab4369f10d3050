"""Frozen weights scored on held-out sequences while a training goes on.

Each sequence is predicted from the zero state; frames 1 to T - 1 are scored, and so is
copying the frame before. Losses are pooled over all sequences before they are divided:
where a scene hardly moves, its own ratio says little.
"""

from typing import Any

import numpy as np

from prednet_jax import data
from prednet_jax.training.trainer import Evaluation, Trainer

# Most frames of a sequence, and least numbers of sequences and of frames in all, where
# there are as many.
_LONGEST, _SEQUENCES, _FRAMES = 100, 16, 1600


class Validation:
    """Held-out sequences of equal length.

    Attributes:
        frames: `[T, S, H, W, C]` uint8, the first frames of the first S sequences that
            have as many.

    Args:
        trainer: of the network.
        source: the held-out sequences.
    """

    def __init__(self, trainer: Trainer, source: data.FrameSource):
        self._trainer, self._source = trainer, source
        begins = np.asarray(source.boundaries)
        lengths = np.diff(begins, append=source.length)
        steps = int(min(_LONGEST, np.median(lengths)))
        begins = begins[lengths >= steps]
        count = max(_SEQUENCES, -(-_FRAMES // steps))
        self.frames = np.stack(
            [source.read(begin, begin + steps) for begin in begins[:count].tolist()], 1
        )

    def score(self, params: Any) -> Evaluation:
        """Of the weights, without noise."""
        return self._trainer.evaluate(params, self.frames)

    def record(self) -> dict[str, Any]:
        """What a manifest says of it."""
        steps, count = self.frames.shape[:2]
        return {
            "data": self._source.name,
            "sequences": count,
            "frames": steps,
            "sha256": self._source.fingerprint,
        }
