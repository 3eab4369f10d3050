r"""Trains the seeds of a part of the study on the GPU at hand.

    python experiments/study_gpu.py --part=H --arms=gpu,gpu_stale --workdir=runs/gpu

All seeds of an arm are trained in one program. Writes PART_ARM.npz (curves, final
weights) and PART_ARM.json (losses, device, versions) to --workdir. Distances are
measured from the arm `cpu`, if the same --workdir has it (JAX_PLATFORMS=cpu
--arms=cpu). docs/study/on_gpu.md has plan and result.
"""

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import _cli
import _flags
import jax
import numpy as np
from absl import flags

from prednet_jax import errors, process, records
from prednet_jax.studies import on_gpu, parts

FLAGS = flags.FLAGS
IN_ORDER = [name for name, part in parts.PARTS.items() if not part.random_windows]
flags.DEFINE_enum("part", "H", IN_ORDER, "A part that is trained on a stream in order.")
flags.DEFINE_list("arms", ["gpu"], f"Some of {', '.join(on_gpu.ARMS)}.")
flags.DEFINE_list("seeds", None, "Some seeds of the part only.")
flags.DEFINE_integer("updates", 0, "0: those of the part.", 0)
flags.DEFINE_string("workdir", "runs/gpu", "Where to write.")


def main() -> None:
    """Renders the frames, trains the arms, in threads, writes."""
    for arm in FLAGS.arms or [""]:
        errors.one_of("--arms", arm, tuple(on_gpu.ARMS))
    part = parts.PARTS[FLAGS.part]
    seeds = _flags.integers("seeds") or tuple(part.seeds)
    for seed in seeds:
        errors.one_of("--seeds", seed, tuple(part.seeds))
    updates = FLAGS.updates or part.updates
    process.prepare()
    process.set_precision("float32")
    here, wanted = jax.default_backend(), {arm[:3] for arm in FLAGS.arms}
    if wanted != {here}:
        raise errors.UserError(
            f"--arms={','.join(FLAGS.arms)}: JAX runs on {here}; expected a GPU, or "
            "JAX_PLATFORMS=cpu for the arm cpu alone"
        )
    facts = _cli.provenance() | {
        "device": process.description(),
        "environment": records.of_numbers(records.environment()),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "part": part.name,
        "seeds": list(seeds),
        "updates": updates,
    }
    folder = Path(FLAGS.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    controls = final_weights(folder / f"{part.name}_cpu.npz", updates)
    shown = jax.device_put(frames(part, seeds, updates))

    def follow(arm: str) -> None:
        started = time.perf_counter()
        curves, weights = on_gpu.train(part, on_gpu.ARMS[arm], seeds, shown, updates)
        seconds = time.perf_counter() - started
        runs = on_gpu.record(part, seeds, curves, weights, controls)
        made = facts | {"arm": arm, "seconds": seconds, "runs": runs}
        arrays = {"seeds": seeds, "weights": weights, **curves}
        np.savez(folder / f"{part.name}_{arm}.npz", **arrays)
        records.write_json(folder / f"{part.name}_{arm}.json", made)
        print(
            f"{part.name} {arm}: {len(seeds)} seeds, {updates} updates, {seconds:.0f} s"
        )

    # XLA compiles on one thread each.
    with ThreadPoolExecutor(len(FLAGS.arms)) as pool:
        list(pool.map(follow, FLAGS.arms))


def final_weights(path: Path, updates: int) -> dict[int, np.ndarray]:
    """The weights after so many updates in a file of an arm, by seed; else none."""
    if not path.exists():
        return {}
    with np.load(path) as arrays:
        if arrays["window_loss"].shape[1] != updates:
            return {}
        return dict(zip(arrays["seeds"].tolist(), arrays["weights"], strict=True))


def frames(part: parts.Part, seeds: tuple[int, ...], updates: int) -> np.ndarray:
    """The frames [N, T, H, W, C] of the seeds, rendered by all processors."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawn) as pool:
        every = [pool.submit(on_gpu.rendered, part, seed, updates) for seed in seeds]
        return np.stack([each.result() for each in every])


if __name__ == "__main__":
    _cli.run(main)
