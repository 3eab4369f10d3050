"""What a run's manifest says."""

import time
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


def make(recipe: Recipe, seed: int, found: Prepared) -> dict[str, Any]:
    """What a run's manifest says before it starts.

    Args:
        recipe: of the run.
        seed: of the run.
        found: the frames, their schedule and the initial weights.
    """
    spec = noise_lib.Identity() if recipe.noise is None else recipe.noise
    validation = recipe.validation
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
        "data": found.source.name,
        **({"sampling": recipe.sampling} if recipe.sampling != "stream" else {}),
        **({"validation": validation.record()} if validation else {}),
        "updates": recipe.updates,
        "noise": noise_lib.format(spec, defaults=True),
        "noise_draw": recipe.draw,
        "initial_params_sha256": records.fingerprint(found.weights),
        "data_order_sha256": data.order_fingerprint(found.source, found.schedule),
    }
