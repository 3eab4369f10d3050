"""Predicts frames with trained weights and compares with copy-last-frame.

    python experiments/predict.py                         (trains a small network first)
    python experiments/predict.py --weights=FILE --data=PATH --extrapolate_from=10

Weights: a checkpoint directory of train.py, a Chainer `*.model` npz or a Keras HDF5
file. Prints the mean squared error of each frame and writes predictions.npz and
predictions.png into --workdir. Protocol: one sequence from the zero state, MSE over all
pixels of a frame in [0, 1], frame 0 (which nothing could predict) left out of the mean.
"""

import io
from pathlib import Path

import _cli
import _flags
import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from prednet_jax import data, predict, process, records
from prednet_jax.errors import UserError
from prednet_jax.objectives import Method
from prednet_jax.training import loop, runs, truncated

FLAGS = flags.FLAGS
_flags.define_model_flags(channels="3,12,24", height=48, width=64)
_flags.define_data_flags()
flags.adopt_module_key_flags(_flags)
flags.DEFINE_string("weights", None, "Weight file, or a run directory of train.py.")
flags.DEFINE_integer("start", 0, "First frame of the sequence.")
flags.DEFINE_integer("frames", 20, "Frames to show, >= 2.")
flags.DEFINE_integer(
    "extrapolate_from", None, "From this frame on the network sees its own predictions."
)
flags.DEFINE_integer("seed", 0, "Seed of generated frames.")
flags.DEFINE_integer("updates", 60, "Updates of the small network without --weights.")
flags.DEFINE_string("workdir", "runs/predict", "Where to write.")


def main(argv: list[str]) -> None:
    """Checks, predicts, writes, prints."""
    del argv
    process.prepare(cache=True)
    _flags.check_numbers(2, "frames")
    _flags.check_numbers(0, "start")
    task, params = weights()
    source = _flags.open_source(task, FLAGS.seed)
    if FLAGS.start + FLAGS.frames > source.length:
        raise UserError(
            f"--start={FLAGS.start} --frames={FLAGS.frames}: expected at most "
            f"{source.length} frames of {source.name}"
        )
    shown = source.read(FLAGS.start, FLAGS.start + FLAGS.frames)
    frames = truncated.to_pixels(jnp.asarray(shown), jnp.float32)
    run = jax.jit(
        lambda p, x: predict(
            p, task.config, x[:, None], extrapolate_from=FLAGS.extrapolate_from
        )[0][:, 0]
    )
    predictions = np.asarray(run(params, frames))
    truth = np.asarray(frames)
    # From the switch on, the last frame that was seen is all that can be copied.
    k = FLAGS.extrapolate_from or FLAGS.frames
    copied = truth[np.minimum(np.maximum(np.arange(FLAGS.frames) - 1, 0), k - 1)]
    errors = np.square(predictions - truth).mean(axis=(1, 2, 3))
    copy_errors = np.square(copied - truth).mean(axis=(1, 2, 3))
    folder = Path(FLAGS.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    save(folder, truth, predictions, copied)
    print("frame  prediction  copy-last-frame")
    for t in range(1, FLAGS.frames):
        print(f"{t:5d}  {errors[t]:10.5f}  {copy_errors[t]:15.5f}")
    print(f" mean  {errors[1:].mean():10.5f}  {copy_errors[1:].mean():15.5f}")
    print(f"{folder / 'predictions.npz'}, {folder / 'predictions.png'}")


def weights() -> tuple:
    """The network and its weights: loaded, or trained here."""
    if FLAGS.weights:
        folder = Path(FLAGS.weights)
        found = (
            runs.saved_weights(folder)
            if folder.is_dir()
            else _flags.load_weights(FLAGS.weights)
        )
        if found[0].name != "prednet":
            raise UserError(f"--weights={folder}: of {found[0].name}; expected prednet")
        return found
    if FLAGS.model != "prednet":
        raise UserError(f"--model={FLAGS.model}: expected prednet")
    _flags.check_numbers(1, "updates")
    task = _flags.task()
    source = data.open_source(
        "walk", height=task.frame[0], width=task.frame[1], seed=FLAGS.seed + 1
    )
    schedule = loop.frame_schedule(task, source, window=10, updates=FLAGS.updates)
    optimizer = task.optimizer(FLAGS.updates)
    update = loop.compile_update(task, optimizer, Method(), None)
    params = loop.initial_params(task, FLAGS.seed)
    state = truncated.initial_train_state(task, params, optimizer)
    print(f"no --weights: training a small one, {FLAGS.updates} updates", flush=True)
    end = state
    steps = loop.train(update, state, source, schedule, seed=FLAGS.seed)
    for end, _ in steps:  # noqa: B007 (the last state is used)
        pass
    return task, end.params


def save(folder: Path, truth: np.ndarray, predictions: np.ndarray, copied) -> None:
    """Writes predictions.npz and the picture of them."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, frames=truth, predictions=predictions)
    records.write_bytes(folder / "predictions.npz", buffer.getvalue())
    rows = {"true": truth, "prediction": predictions, "previous frame": copied}
    records.write_bytes(folder / "predictions.png", picture(rows))


def picture(rows: dict[str, np.ndarray]) -> bytes:
    """At most ten frames of each row, evenly spread, as a PNG."""
    import matplotlib.pyplot as plt

    count = min(10, FLAGS.frames)
    shown = np.linspace(0, FLAGS.frames - 1, count).round().astype(int)
    figure, axes = plt.subplots(
        len(rows), count, figsize=(1.4 * count, 1.2 * len(rows)), squeeze=False
    )
    for (name, images), line in zip(rows.items(), axes, strict=True):
        for t, ax in zip(shown, line, strict=True):
            ax.imshow(np.clip(images[t].squeeze(), 0, 1), cmap="gray", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            if line is axes[0]:
                ax.set_title(f"frame {t}", fontsize=8)
        line[0].set_ylabel(name, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    plt.close(figure)
    return buffer.getvalue()


if __name__ == "__main__":
    _cli.run(main)
