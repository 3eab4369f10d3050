"""Predicts the frames of a video, and the frames that follow its last one.

    python experiments/predict.py                     (the network of the package)
    python experiments/predict.py --weights=runs/first --data=VIDEO.mp4
    python experiments/predict.py --data=VIDEO.mp4 --future=5

One sequence is predicted from the zero state, each frame before it is seen. The scores
MSE, MAE, PSNR and SSIM of all frames except the first are printed, with the scores of
copying the last frame that was seen in brackets. From frame --extrapolate_from of the
sequence on the network sees its own predictions. --future predicts frames after the
last one.

These files are written into --workdir: scores.csv (a row per frame), scores.json (means
over observed and over extrapolated frames), predictions.npz (`frames`, `predictions`
and `future`), predictions.png and predictions.gif. --layers=E0,R1 adds layers.npz, the
maps of these layers at each frame, and layers.png, their mean over channels. In both
.npz files `number` has the numbers of the frames, and `seen` is True for the frames
that the network saw.

Weights are whatever convert_weights.py reads. A run brings frames, crop and size
unless flags set them. Frames from disk are scaled to the size of a network that
comes with the package. 100 frames of 24x32 take five seconds of one core.
"""

import math
from pathlib import Path
from typing import Any

import _cli
import _flags
import _inherited
import numpy as np
from absl import flags

from prednet_jax import data, errors, files, process, records
from prednet_jax.data.frames import ENDLESS, FrameSource
from prednet_jax.errors import UserError
from prednet_jax.models import prednet, sequences
from prednet_jax.report import strips, tables
from prednet_jax.tasks import PredNetTask, Task
from prednet_jax.training import evaluation

FLAGS = flags.FLAGS
LAYERS = ("layers.npz", "layers.png")
_cli.TOPICS |= {
    "Weights and frames": ["weights", "start", "frames", "seed"],
    "Predictions": ["future", "extrapolate_from", "stored_start"],
    "Output": ["workdir", "layers"],
}
WORDS = ("seen", "own")  # The network saw a true frame, or its own.
_flags.define_model_flags()
_flags.define_data_flags()
_inherited.define_weights()
flags.DEFINE_integer(
    "start", None, "First frame of the sequence. Defaults to 0; see --future.", 0
)
flags.DEFINE_integer(
    "frames",
    None,
    "Frames to show, two or more, with --future one or more; 0: all of the sequence. "
    "Defaults to 20, or to as many as there are.",
)
flags.DEFINE_integer(
    "future",
    0,
    "Frames to predict after the last frame that is shown. Without --start and "
    "--frames the last 100 frames of the data are shown, or all.",
    0,
)
flags.DEFINE_list(
    "layers",
    [],
    "Maps to keep: R, A, Ahat or E and the number of a layer, such as E0,R1.",
)
flags.DEFINE_integer("seed", 0, "Seed of generated frames.")
flags.DEFINE_string("workdir", "runs/predict", "Directory to write.")


def main() -> None:
    """Checks the flags, predicts, writes and prints."""
    process.prepare(cache=True)
    trained = _inherited.load_trained_network()
    check_network(trained)
    source = trained.frames.open_source(trained.task, FLAGS.seed)
    start, frames = shown_frames(source, trained.task)
    future = FLAGS.future
    trained = trained.for_frames(frames, future=bool(future))
    k = trained.extrapolate_from
    if k is not None:
        errors.check_int("--extrapolate_from", k, 1, frames - 1)
    if source.done:
        print(f"data={source.name}: {source.done}", flush=True)
    truth = source.read(start, start + frames).astype(np.float32) / np.float32(255)
    # The frames of the future are not known; the network does not see these.
    shown = np.concatenate([truth, np.zeros((future, *truth.shape[1:]), np.float32)])
    first = frames if k is None and future else k
    predictions, maps = evaluation.predict_frames(
        trained.task, trained.params, shown, extrapolate_from=first, maps=FLAGS.layers
    )
    copied = evaluation.last_seen(shown, first)
    scores = (evaluation.score(truth, x[:frames]) for x in (predictions, copied))
    rows = evaluation.table(*scores, k, start=start)
    unknown = np.full_like(shown[frames:], np.nan)
    pictures = {"true": np.concatenate([truth, unknown])}
    pictures |= {"prediction": predictions, "last frame": copied}
    labels: dict[str, Any] = {"start": start, "words": WORDS}
    number = start + np.arange(len(shown))
    marks = {"number": number, "seen": number < start + (first or len(shown))}
    arrays = {"frames": truth, "predictions": predictions[:frames], **marks}
    if future:
        arrays["future"] = predictions[frames:]
    record = {"means": evaluation.means(rows), "frames": rows, "start": start}
    record |= {"extrapolate_from": k, "future": future}
    record |= _cli.provenance(**trained.effective)
    contents = layers(maps, marks, first, labels) if maps else {}
    contents |= {
        "scores.csv": records.csv_bytes(rows, COLUMNS),
        "scores.json": records.json_bytes(record),
        "predictions.npz": records.tree_bytes(arrays, compressed=True),
        "predictions.png": strips.strip(pictures, first, **labels),
        "predictions.gif": strips.film(pictures, first, **labels),
    }
    write(Path(FLAGS.workdir), contents)
    if frames < source.length < ENDLESS:
        print(f"shown: frames {start} to {start + frames - 1} of {source.length}")
    print_scores(rows)
    describe(trained, start, frames, first)
    print(f"{FLAGS.workdir}: {', '.join(sorted(contents))}")


def describe(
    trained: _inherited.TrainedNetwork, start: int, frames: int, first: int | None
) -> None:
    """Prints which frames the network was trained on, and which it has seen here."""
    shown_data, seen = trained.frames.data, _inherited.run_flags(trained.weights)
    if shown_data == seen.get("data") not in (None, *data.NAMES):
        print(
            f"{trained.weights} was trained on frames of {shown_data}; evaluate.py "
            "--split=test scores frames that it has not seen"
        )
    if FLAGS.layers:
        config = trained.task.config  # type: ignore[attr-defined]
        for name, offset in sequences.unit_times(config, FLAGS.layers).items():
            print(f"{name} at frame t has seen frames up to t{' - 1' * (offset < 0)}")
        if first is not None:
            no_error = "; E0 is then no error" * ("E0" in FLAGS.layers)
            print(
                f"from frame {start + first} on the layers see the network's own "
                f"predictions in place of frames{no_error}"
            )
    if FLAGS.future:
        print(
            f"future: frames {start + frames} to {start + frames + FLAGS.future - 1}; "
            f"the network has seen frames {start} to {start + (first or frames) - 1}"
        )


def check_network(trained: _inherited.TrainedNetwork) -> None:
    """Refuses a network of single images, and flags that need a PredNet."""
    task = trained.task
    if not task.windowed:
        future = f"--future={FLAGS.future} with " if FLAGS.future else ""
        raise UserError(
            f"{future}--weights={trained.weights}: the network {task.name} sees single "
            "images and has no next frame; expected a PredNet"
        )
    config = task.config if isinstance(task, PredNetTask) else None
    for name in ("future", "extrapolate_from", "layers"):
        if config is None and FLAGS[name].value:
            raise UserError(
                f"--{name}={FLAGS[name].serialize().partition('=')[2]} with the "
                f"network {task.name}: expected a PredNet, or leave --{name} out"
            )
    for name in FLAGS.layers:
        with errors.named(f"--layers={','.join(FLAGS.layers)}"):
            prednet.place_of_map(config, name)


def shown_frames(source: FrameSource, task: Task) -> tuple[int, int]:
    """Returns the first frame that is shown, and the number of frames."""
    start, count, future = FLAGS.start, FLAGS.frames, FLAGS.future
    longest = 20
    if future and start is None and count is None and source.length < ENDLESS:
        start = max(source.boundaries[-1], source.length - 100)
        longest = 100
    start = start or 0
    end = next((b for b in source.boundaries if b > start), source.length)
    least = 1 if future else 2
    # predictions.npz holds frames and predictions in float32, and has to be readable.
    most = files.LIMIT // (2 * 4 * math.prod(task.frame)) - future
    if count == 0 and source.length >= ENDLESS:
        raise UserError(
            f"--frames=0 with --data={source.name}: it has no end; expected 1 or more"
        )
    if not count:
        count = max(least, min(longest if count is None else end, end - start))
    errors.check_int("--future", future, 0, most + future - least)
    errors.check_int("--frames", count, least, most)
    if start + count > end:
        raise UserError(
            f"--start={start} --frames={count}: expected a sum of at most {end}, where "
            f"a sequence of {source.name} ends; --future predicts the frames after it"
        )
    return start, count


COLUMNS = (
    *("frame", "observed", *evaluation.METRICS),
    *(f"copy_{name}" for name in evaluation.METRICS),
)


def write(folder: Path, contents: dict[str, bytes]) -> None:
    """Writes the files, and removes the files of an earlier call."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "scores.json").exists():
        print(f"{folder}: an earlier prediction is replaced")
    files.write_files(folder, contents)
    for name in LAYERS:
        if name not in contents:
            (folder / name).unlink(missing_ok=True)


def print_scores(rows: list[dict[str, Any]]) -> None:
    """Prints the scores of each frame, with the scores of copying in brackets."""
    labelled = [(str(row["frame"]), row) for row in rows]
    means = evaluation.means(rows)
    labelled += [(f"{group}, mean", mean) for group, mean in means.items()]
    cells = [("frame", *evaluation.METRICS, "")]
    for label, row in labelled:
        scores = (f"{row[n]:.3g} ({row[f'copy_{n}']:.3g})" for n in evaluation.METRICS)
        cells.append((label, *scores, "extrapolated" * (not row.get("observed", True))))
    if rows:
        print(tables.columns(cells, right=range(1, 5)))
        print("In brackets: copying the last frame that was seen.")


def layers(
    maps: dict[str, np.ndarray],
    marks: dict[str, np.ndarray],
    first: int | None,
    labels: dict[str, Any],
) -> dict[str, bytes]:
    """Draws the maps, and a strip of their channel means in one grey scale per layer.

    A scale ends at the 99th percentile of all frames except the first, before which
    nothing was seen. So later frames are not black.
    """
    rows = {}
    for name, layer in maps.items():
        mean = layer.mean(axis=-1, keepdims=True)
        scaled = mean[1:] if len(mean) > 1 else mean
        low, high = scaled.min(), np.percentile(scaled, 99)
        rows[f"{name}: {low:.2g} to {high:.2g}"] = (mean - low) / max(high - low, 1e-12)
    contents = (
        records.tree_bytes(maps | marks, compressed=True),
        strips.strip(rows, first, **labels),
    )
    return dict(zip(LAYERS, contents, strict=True))


if __name__ == "__main__":
    _cli.run(main)
