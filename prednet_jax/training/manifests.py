"""What a run's manifest says."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prednet_jax import data, device, keys, provenance, records
from prednet_jax import noise as noise_lib
from prednet_jax.training.recipe import Prepared, Recipe


class Clock:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, float]:
        """What a manifest says of the time."""
        wall = time.perf_counter() - self._start[0]
        parallelism = (time.process_time() - self._start[1]) / wall
        return {"wall_seconds": wall, "processor_seconds_per_second": parallelism}


def make(
    recipe: Recipe, seed: int, sources: Sequence[data.FrameSource], found: Prepared
) -> dict[str, Any]:
    """What a run's manifest says before it starts.

    Args:
        recipe: of the run.
        seed: of the run.
        sources: its streams of frames; the schedule is that of each.
        found: the schedule and the initial weights.
    """
    spec = noise_lib.Identity() if recipe.noise is None else recipe.noise
    algorithms = recipe.task.algorithms(recipe.dtype)
    return {
        "git_commit": provenance.git_commit(Path(__file__).parent),
        "versions": provenance.versions(),
        "device": device.description(),
        "measured_parallelism": device.measured_parallelism(),
        "flags": dict(recipe.flags),
        "network": recipe.task.network(),
        "environment": provenance.environment(),
        "prng": keys.IMPLEMENTATION,
        **({"convolutions": algorithms} if algorithms else {}),
        "model": recipe.task.name,
        "seed": seed,
        "data": sources[0].name,
        "updates": recipe.updates,
        "noise": noise_lib.format(spec, defaults=True),
        "noise_draw": recipe.draw,
        "initial_params_sha256": records.fingerprint(found.weights),
        "data_order_sha256": order_digest(sources, found.schedule),
    }


def order_digest(sources: Sequence[data.FrameSource], schedule: data.Schedule) -> str:
    """SHA-256 of the data order of a run's streams; of one, the stream's own."""
    digests = [data.order_fingerprint(source, schedule) for source in sources]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()
