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

import common
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
common.define_model_flags(channels="3,12,24", height=48, width=64)
common.define_data_flags()
flags.adopt_module_key_flags(common)
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
    if FLAGS.frames < 2:
        raise ValueError(f"--frames={FLAGS.frames}: expected at least 2")
    if FLAGS.start < 0:
        raise ValueError(f"--start={FLAGS.start}: expected at least 0")
    common.use_compilation_cache()
    import jax
    import jax.numpy as jnp

    from prednet_jax import predict
    from prednet_jax.training import truncated

    config, params = weights()
    name = FLAGS.data or "walk"
    source = common.open_source(name, config, FLAGS.seed)
    if FLAGS.start + FLAGS.frames > source.length:
        raise ValueError(
            f"--start={FLAGS.start} --frames={FLAGS.frames}: expected at most "
            f"{source.length} frames of {name}"
        )
    shown = source.read(FLAGS.start, FLAGS.start + FLAGS.frames)
    frames = truncated.to_pixels(jnp.asarray(shown), jnp.float32)
    run = jax.jit(
        lambda p, x: predict(
            p, config, x[:, None], extrapolate_from=FLAGS.extrapolate_from
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
    from prednet_jax import data
    from prednet_jax.training import loop, truncated

    if FLAGS.weights and Path(FLAGS.weights).is_dir():
        return common.load_run(FLAGS.weights)
    if FLAGS.weights:
        return common.load_weights(FLAGS.weights)
    if FLAGS.model != "prednet":
        raise ValueError(f"--model={FLAGS.model}: expected prednet")
    if FLAGS.updates < 1:
        raise ValueError(f"--updates={FLAGS.updates}: expected at least 1")
    config = common.model_config("walk")
    source = data.open_source(
        "walk", height=config.height, width=config.width, seed=FLAGS.seed + 1
    )
    schedule = loop.frame_schedule(config, source, window=10, updates=FLAGS.updates)
    optimizer = loop.default_optimizer(config, FLAGS.updates)
    update = loop.compile_update(config, optimizer, truncated.Method(), None)
    params = loop.initial_params(config, FLAGS.seed)
    state = truncated.initial_train_state(config, params, optimizer)
    print(f"no --weights: training a small one, {FLAGS.updates} updates", flush=True)
    end = state
    steps = loop.train(update, state, source, schedule, seed=FLAGS.seed)
    for end, _ in steps:  # noqa: B007 (the last state is used)
        pass
    return config, end.params


def save(folder: Path, truth: np.ndarray, predictions: np.ndarray, copied) -> None:
    """Writes predictions.npz and the picture of them."""
    from prednet_jax import records

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
    common.run(main)
