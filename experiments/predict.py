"""Predicts frames with trained weights and compares with copy-last-frame.

    python experiments/predict.py                     (the network of the package)
    python experiments/predict.py --data=VIDEO        (the same, on frames of yours)
    python experiments/predict.py --weights=runs/first
    python experiments/predict.py --weights=FILE --data=PATH --extrapolate_from=10

Weights: whatever convert_weights.py reads. Of a run, frames, crop and size are its own
unless flags say otherwise. Frames from disk are scaled to the size of a network that
comes with the package.

One sequence is predicted from the zero state; frame 0 is not scored; from
--extrapolate_from on the network sees its own predictions. Prints MSE, MAE, PSNR and
SSIM of each frame beside copying the last frame seen, and writes into --workdir:
scores.csv (a row per frame), scores.json (means over observed and over extrapolated
frames), predictions.npz, .png and .gif. --layers=E0,R1 adds layers.npz, those inner
maps at each frame, and layers.png, the mean over their channels.
"""

import math
from pathlib import Path
from typing import Any

import _cli
import _flags
import _inherited
import numpy as np
from absl import flags

from prednet_jax import errors, files, process, records
from prednet_jax.errors import UserError
from prednet_jax.models import prednet, sequences
from prednet_jax.report import documents, strips
from prednet_jax.training import evaluation

FLAGS = flags.FLAGS
LAYERS = ("layers.npz", "layers.png")
_flags.define_model_flags()
_flags.define_data_flags()
_inherited.define_weights()
flags.DEFINE_integer("start", 0, "First frame of the sequence.", 0)
flags.DEFINE_integer("frames", None, "Frames to show; default: 20, or all there are.")
flags.DEFINE_list(
    "layers",
    [],
    "Inner maps to keep: R, A, Ahat or E and the number of a layer, such as E0,R1.",
)
flags.DEFINE_integer("seed", 0, "Seed of generated frames.")
flags.DEFINE_string("workdir", "runs/predict", "Where to write.")


def main() -> None:
    """Checks, predicts, writes, prints."""
    process.prepare(cache=True)
    task, params = _inherited.trained()
    if task.name != "prednet":
        raise UserError(f"--weights={FLAGS.weights}: of {task.name}; expected prednet")
    for name in FLAGS.layers:
        try:
            prednet.place_of_map(task.config, name)
        except UserError as error:
            raise UserError(f"--layers={','.join(FLAGS.layers)}: {error}") from None
    # predictions.npz holds frames and predictions in float32, and has to be readable.
    most = files.LIMIT // (2 * 4 * math.prod(task.frame))
    source = _flags.open_source(task, FLAGS.seed)
    end = next((b for b in source.boundaries if b > FLAGS.start), source.length)
    left = max(2, min(20, end - FLAGS.start))
    frames = left if FLAGS.frames is None else FLAGS.frames
    errors.whole("--frames", frames, 2, most)
    if FLAGS.start + frames > end:
        raise UserError(
            f"--start={FLAGS.start} --frames={frames}: expected a sum of at most "
            f"{end}, where a sequence of {source.name} ends"
        )
    k = FLAGS.extrapolate_from
    if k is not None:
        errors.whole("--extrapolate_from", k, 1, frames - 1)
    if source.done:
        print(f"data={source.name}: {source.done}", flush=True)
    shown = source.read(FLAGS.start, FLAGS.start + frames)
    truth = shown.astype(np.float32) / np.float32(255)
    predictions, maps = sequences.predict_sequence(
        params, task.config, truth, extrapolate_from=k, maps=FLAGS.layers
    )
    copied = evaluation.last_seen(truth, k)
    rows = evaluation.table(
        evaluation.score(truth, predictions), evaluation.score(truth, copied), k
    )
    folder = Path(FLAGS.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"true": truth, "prediction": predictions, "last frame": copied}
    contents = layers(maps, k) if maps else {}
    contents |= everything(pictures, rows, k)
    if (folder / "scores.json").exists():
        print(f"{folder}: an earlier prediction is replaced")
    files.write_files(folder, contents)
    for name in LAYERS:  # Of an earlier call.
        if name not in contents:
            (folder / name).unlink(missing_ok=True)
    say(rows)
    print(f"{folder}: {', '.join(sorted(contents))}")


def say(rows: list[dict[str, Any]]) -> None:
    """Prints the table: the network's score, and that of copying in brackets."""
    lines = [(str(row["frame"]), row) for row in rows]
    lines += [(f"{name}, mean", of) for name, of in evaluation.means(rows).items()]
    cells = [("frame", *evaluation.METRICS, "")]
    for label, row in lines:
        of = (f"{row[n]:.3g} ({row[f'copy_{n}']:.3g})" for n in evaluation.METRICS)
        cells.append((label, *of, "" if row.get("observed", True) else "extrapolated"))
    print(documents.columns(cells, right=range(1, 5)))


def everything(
    pictures: dict[str, Any], rows: list[dict[str, Any]], k: int | None
) -> dict[str, bytes]:
    """Scores and predictions, by the names of their files."""
    scores = {"means": evaluation.means(rows), "frames": rows, "extrapolate_from": k}
    arrays = {"frames": pictures["true"], "predictions": pictures["prediction"]}
    return {
        "scores.csv": records.csv_bytes(rows),
        "scores.json": records.json_bytes(scores | _cli.provenance()),
        "predictions.npz": records.tree_bytes(arrays, compressed=True),
        "predictions.png": strips.strip(pictures, k),
        "predictions.gif": strips.film(pictures, k),
    }


def layers(maps: dict[str, np.ndarray], k: int | None) -> dict[str, bytes]:
    """Inner maps, and a strip of their mean over channels, each in its range."""
    means = {name: map_.mean(axis=-1, keepdims=True) for name, map_ in maps.items()}
    shown = {
        name: (mean - mean.min()) / max(np.ptp(mean), 1e-12)
        for name, mean in means.items()
    }
    contents = records.tree_bytes(maps, compressed=True), strips.strip(shown, k)
    return dict(zip(LAYERS, contents, strict=True))


if __name__ == "__main__":
    _cli.run(main)
