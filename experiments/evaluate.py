r"""Scores frozen weights on many sequences that were not trained on.

    python experiments/evaluate.py                     (the network of the package)
    python experiments/evaluate.py --weights=RUN --split=unseen
    python experiments/evaluate.py --weights=RUN --data=moving_digits --frames=20 \
        --extrapolate_from=10 --sequences=1000          (10 -> 10, as Moving MNIST)

Protocol: the sequences of the split are cut into pieces of --frames, each is predicted
from the zero state, frame 0 is not scored; from --extrapolate_from on the network sees
its own predictions. Prints MSE, MAE, PSNR and SSIM beside copying the last frame seen,
pooled over all sequences, and writes them with the command, the weights' SHA-256 and
the versions to --output. docs/benchmarks.md has the protocols of the literature.
"""

import os
from pathlib import Path
from typing import Any

import _cli
import _flags
import _inherited
from absl import flags

from prednet_jax import data, errors, process, records
from prednet_jax.training import evaluation

FLAGS = flags.FLAGS
_flags.define_model_flags()
_flags.define_data_flags()
_inherited.define_weights()
flags.DEFINE_enum(
    "split",
    "test",
    (*data.SPLITS, "all"),
    "Which sequences (docs/training.md); all: every frame of --data.",
)
flags.DEFINE_integer(
    "frames", None, "Frames of a sequence, >= 2; default: 100, or as many as it has."
)
flags.DEFINE_integer(
    "sequences", None, "How many; 0: all. Default: 16 of generated ones, else all.", 0
)
flags.DEFINE_integer("skip", 0, "Sequences that are left out before these.", 0)
flags.DEFINE_float(
    "ssim_range", 1.0, "Range of pixels in SSIM's constants; OpenSTL's is 2."
)
flags.DEFINE_integer("seed", 0, "Seed of generated frames, with --split=all.")
flags.DEFINE_string("output", None, "JSON file to write.")


def main() -> None:
    """Checks, scores, writes, prints."""
    process.prepare(cache=True)
    _flags.check_beside("--split=all", FLAGS.split == "all", "seed")
    errors.positive("--ssim_range", FLAGS.ssim_range)
    of_run = _inherited.run_flags(FLAGS.weights) if FLAGS.weights else {}
    task, params = _inherited.trained()
    source = (
        _flags.open_source(task, FLAGS.seed)
        if FLAGS.split == "all"
        else _flags.open_split(task, FLAGS.split)
    )
    few = 16 if (FLAGS.data or task.data) in data.NAMES else 0
    if source.done:
        print(f"data={source.name}: {source.done}", flush=True)
    say_if_seen(of_run, FLAGS.data or task.data, of_run.get("data") or task.data)
    found = evaluation.evaluate(
        params,
        task,
        source,
        frames=FLAGS.frames,
        extrapolate_from=FLAGS.extrapolate_from,
        count=(few if FLAGS.sequences is None else FLAGS.sequences) or None,
        skip=FLAGS.skip,
        data_range=FLAGS.ssim_range,
    )
    record = {
        "weights": FLAGS.weights,
        "weights_sha256": records.fingerprint(params),
        "data": source.name,
        "data_sha256": source.fingerprint,
        "split": FLAGS.split,
        "skip": FLAGS.skip,
        "extrapolate_from": FLAGS.extrapolate_from,
        "ssim_range": FLAGS.ssim_range,
        **found,
    }
    if FLAGS.output:
        _cli.write(Path(FLAGS.output), record)
    print(f"{source.name}: {found['sequences']} sequences of {found['frames']} frames")
    for group in ("observed", "extrapolated"):
        if of := found.get(group):
            # The network's score, and that of copying in brackets.
            cells = (
                f"{metric} {of[metric]:.4g} ({of['copy_' + metric]:.4g})"
                for metric in (*evaluation.METRICS, "squared_error", "absolute_error")
            )
            print(f"{group}: {', '.join(cells)}")
            print(f"{group}: {of['ratio']:.3f} of copying")


def say_if_seen(of_run: dict[str, Any], name: str, trained: str) -> None:
    """Says where a training on a stream saw these frames, or their pictures."""
    generated = name in data.NAMES
    shared = FLAGS.split == "unseen" if generated else FLAGS.split != "all"
    same = os.path.realpath(name) == os.path.realpath(trained)
    if shared and same and of_run.get("sampling") == "stream":
        errors.say(
            f"--weights={FLAGS.weights}: trained on a stream through all of {name}, so "
            f"on these {'pictures' if generated else 'frames'} too"
        )


if __name__ == "__main__":
    _cli.run(main)
