r"""Scores frozen weights on sequences that they were not trained on.

    python experiments/evaluate.py                     (the network of the package)
    python experiments/evaluate.py --weights=RUN --data=PATH --split=all
    python experiments/evaluate.py --weights=RUN --split=unseen --horizons=1,2,5

The sequences of the split are cut into pieces of --frames. Each piece is predicted from
the zero state, frame by frame, and its frame 0 is not scored. MSE, MAE, PSNR and SSIM
are pooled over all pieces and printed, with the scores of copying the last frame seen
in brackets. From --extrapolate_from on the network sees its own predictions. With
--horizons every frame t of a piece is also a start: frame t + h is predicted from the
frames up to t.

--output writes the scores as JSON, with the command, the weights' SHA-256 and the
versions. --horizons also writes a figure of the same name, .png.
docs/api/benchmarks.md describes the protocols of the literature. The first
command takes ten seconds of one core.
"""

import os
from pathlib import Path
from typing import Any

import _cli
import _flags
import _inherited
from absl import flags

from prednet_jax import data, errors, process, records
from prednet_jax.data.frames import ENDLESS, FrameSource
from prednet_jax.errors import UserError
from prednet_jax.report import tables
from prednet_jax.training import evaluation

FLAGS = flags.FLAGS
# A network that has seen fewer frames has hardly seen motion.
SHORT = 10
_cli.TOPICS |= {
    "Weights and sequences": [
        *("weights", "split", "frames", "sequences", "skip", "seed")
    ],
    "Predictions": ["horizons", "extrapolate_from", "stored_start"],
    "Output": ["output", "ssim_range"],
}
_flags.define_model_flags()
_flags.define_data_flags()
_inherited.define_weights()
flags.DEFINE_enum(
    "split",
    "test",
    (*data.SPLITS, "val", "all"),
    "Sequences to score (docs/training.md; val is validation), or all of --data.",
)
flags.DEFINE_integer(
    "frames",
    None,
    "Frames of a piece, two or more. Defaults to 100, to the length of shorter "
    "sequences, or to a smaller number that leaves no frame out.",
)
flags.DEFINE_list(
    "horizons", [], "How many frames ahead to predict from every frame, as in 1,2,5."
)
flags.DEFINE_integer(
    "sequences",
    None,
    "Pieces to score; 0: all. Defaults to 16 of generated frames, else to all.",
    0,
)
flags.DEFINE_integer("skip", 0, "Pieces that are left out before these.", 0)
flags.DEFINE_float(
    "ssim_range", 1.0, "Range of pixels in SSIM's constants; OpenSTL's is 2."
)
flags.DEFINE_integer("seed", 0, "Seed of generated frames, with --split=all.")
flags.DEFINE_string(
    "output",
    None,
    "JSON file to write. Defaults to runs/horizons.json with --horizons.",
)


def main() -> None:
    """Checks the flags, scores, writes and prints."""
    process.prepare(cache=True)
    split = "validation" if FLAGS.split == "val" else FLAGS.split
    _flags.require_other_flag("--split=all", split == "all", "seed")
    errors.expect(
        1e-6 <= FLAGS.ssim_range <= 1e9,  # SSIM's constants are products in float32.
        *("--ssim_range", FLAGS.ssim_range, "a number from 1e-6 to 1e9"),
    )
    if horizons := tuple(dict.fromkeys(_flags.integers("horizons"))):
        from prednet_jax.report import figures  # Needs an extra: fail before the work.
    trained = _inherited.load_trained_network()
    source = open_sequences(trained, split)
    steps = FLAGS.frames
    if steps is None:
        steps = evaluation.piece_length(source)
        if steps < SHORT + max(horizons, default=1):
            print(
                f"The sequences are short: from pieces of {steps} frames the network "
                f"has seen at most {steps - 1}. Whole films in a folder test, next to "
                "a folder train, have longer ones."
            )
    trained = trained.for_frames(steps)
    few = 16 if trained.frames.name(trained.task) in data.NAMES else 0
    scores = evaluation.evaluate(
        trained.params,
        trained.task,
        source,
        frames=steps,
        extrapolate_from=trained.extrapolate_from,
        horizons=horizons,
        count=(few if FLAGS.sequences is None else FLAGS.sequences) or None,
        skip=FLAGS.skip,
        data_range=FLAGS.ssim_range,
        progress=_cli.progress,
    )
    record = {
        "weights": trained.weights,
        "weights_sha256": records.fingerprint(trained.params),
        "data": source.name,
        "data_sha256": source.fingerprint,
        "split": split,
        "skip": FLAGS.skip,
        "extrapolate_from": trained.extrapolate_from,
        "ssim_range": FLAGS.ssim_range,
        **scores,
    }
    output = Path(FLAGS.output or "runs/horizons.json")
    replaced = ", in place of earlier ones" * output.exists()
    if FLAGS.output or horizons:
        _cli.write(output, record, **trained.effective)
    print_scores(source.name, scores)
    if horizons:
        # Not `with_suffix`: of v1.5 and v1.6 it is one file, and of x.png the scores.
        picture = output.with_name(f"{output.name.removesuffix('.json')}.png")
        records.write_bytes(picture, figures.horizons_picture(scores["horizons"]))
        print(f"{output}, {picture.name}: the scores, and a figure of them{replaced}")


def open_sequences(trained: _inherited.TrainedNetwork, split: str) -> FrameSource:
    """Opens the sequences of a split, and tells what was made of the frames."""
    frames, task = trained.frames, trained.task
    name = frames.name(task)
    if split != "all":
        source = frames.open_split(task, split)
    elif parts := data.split_parts(name):
        raise UserError(
            f"--split=all with --data={name}: it has the parts {', '.join(parts)}; "
            "expected one of them as --split, or the path of one as --data"
        )
    else:
        source = frames.open_source(task, FLAGS.seed)
    if source.length >= ENDLESS and FLAGS.sequences == 0:
        raise UserError(
            f"--sequences=0 with --data={name}: it has no end; expected 1 or more"
        )
    if source.done:
        print(f"data={source.name}: {source.done}", flush=True)
    warn_if_seen(trained, name)
    return source


def print_scores(name: str, scores: dict[str, Any]) -> None:
    """Prints the scores, with the scores of copying in brackets."""
    count, frames = scores["sequences"], scores["frames"]
    print(f"{name}: {count} pieces of {frames} frames are scored")
    others = scores["pieces"] - count - FLAGS.skip
    if 0 < others < ENDLESS // frames - count - FLAGS.skip:
        print(f"{others} more pieces are not scored; --sequences=0 scores all")
    if scores["left_out"]:
        print(
            f"{scores['left_out']} frames are not scored: ends of sequences that are "
            f"shorter than {frames} frames (--frames sets this length)"
        )
    print("In brackets: copying the last frame that was seen.")
    for group in ("observed", "extrapolated"):
        if of := scores.get(group):
            metrics = (*evaluation.METRICS, "squared_error", "absolute_error")
            cells = (f"{n} {of[n]:.4g} ({of['copy_' + n]:.4g})" for n in metrics)
            print(f"{group}: {', '.join(cells)}")
            print(f"{group}: the mse is {of['ratio']:.3f} of copying's")
    if "horizons" in scores:
        rows = [("horizon", "starts", *evaluation.METRICS, "of copying")]
        for horizon, of in scores["horizons"].items():
            cells = (f"{of[n]:.4g} ({of['copy_' + n]:.4g})" for n in evaluation.METRICS)
            ratio = f"{of['ratio']:.3f}"
            rows.append((f"t+{horizon}", str(of["starts"] * count), *cells, ratio))
        print(tables.columns(rows, right=range(1, 7)))


def warn_if_seen(trained: _inherited.TrainedNetwork, name: str) -> None:
    """Warns where a training on a stream saw these frames, or their pictures."""
    run = _inherited.run_flags(trained.weights)
    generated = name in data.NAMES
    shared = FLAGS.split == "unseen" if generated else FLAGS.split != "all"
    seen = os.path.realpath(run.get("data") or trained.task.data)
    same = os.path.realpath(name) == seen
    if shared and same and run.get("sampling") == "stream":
        errors.log_line(
            f"--weights={trained.weights}: trained on a stream through all of {name}, "
            f"so on these {'pictures' if generated else 'frames'} too"
        )


if __name__ == "__main__":
    _cli.run(main)
