"""Measures whether numerical noise helps gradient descent to leave a saddle.

    python experiments/saddle_escape.py
    python experiments/saddle_escape.py --functions=octopus --keys=8
    python experiments/saddle_escape.py --optimizers=adam --noise=ulp --form=rotated

Runs every combination of function (with known saddles), optimiser, noise, precision and
form, with many keys. All runs start where exact arithmetic would never leave the
saddle. In the form "aligned" the escape direction is a coordinate, so rounding errors
never reach it; in the form "rotated" they reach every direction.

Prints a table with one row per case: when the runs left the first saddle, without noise
and with each noise; how many passed every saddle; and log-rank tests against no noise.
Writes saddle_escape.json to --workdir.

Without flags it takes 75 seconds of one core.
"""

import itertools
from pathlib import Path

import _cli
from absl import flags

from prednet_jax import errors, noise, process, saddles
from prednet_jax.errors import UserError
from prednet_jax.saddles import measured_escapes
from prednet_jax.training import settings

FLAGS = flags.FLAGS
#: What the flags that are lists may hold, which is also their default.
LISTS = {
    "functions": tuple(saddles.CATALOGUE),
    "optimizers": measured_escapes.OPTIMIZERS,
    "precision": ("float32", "float64"),
    "form": ("aligned", "rotated"),
}
for name, accepted in LISTS.items():
    flags.DEFINE_list(name, list(accepted), f"Any of {', '.join(accepted)}.")
flags.DEFINE_string(
    "noise",
    "reduction_order:granularity=element;reduction_order:granularity=shared;"
    "gradient_gaussian:scale=1e-3",
    "Noises in the syntax of train.py, separated by `;`. Runs without noise are always "
    "made, for comparison.",
)
flags.DEFINE_integer(
    "keys", 32, "Runs per group; a key fixes start, rotation and noise.", 1
)
flags.DEFINE_integer("first_key", 0, "The first key.", 0)
flags.DEFINE_integer("steps", 2600, "Steps of each run.", 1)
flags.DEFINE_string("workdir", "results/saddle_escape", "Directory to write.")


def main() -> None:
    """Checks the flags, executes the runs, tests, and writes the results."""
    process.prepare(cache=True)
    functions, noises = check_flags()
    groups = []
    for function, precision, (text, spec) in itertools.product(
        functions, FLAGS.precision, noises.items()
    ):
        groups += measured_escapes.measure(
            function,
            text,
            spec,
            optimizers=FLAGS.optimizers,
            forms=FLAGS.form,
            seeds=FLAGS.keys,
            first_seed=FLAGS.first_key,
            steps=FLAGS.steps,
            precision=precision,
        )
    groups = measured_escapes.compare(groups)
    print(measured_escapes.text_table(groups))
    path = Path(FLAGS.workdir) / "saddle_escape.json"
    _cli.write(path, {"groups": groups})
    print(f"\n{path}")


def check_flags() -> tuple[list, dict]:
    """Checks all flags; returns the functions and the noise specs."""
    for flag, accepted in LISTS.items():
        for value in FLAGS[flag].value or [""]:
            errors.one_of(f"--{flag}", value, accepted)
        errors.each_once(f"--{flag}", FLAGS[flag].value)
    errors.check_int("--first_key", FLAGS.first_key, 0, 2**31 - 1 - FLAGS.keys)
    noises = {measured_escapes.QUIET: noise.Identity()}
    for text in filter(None, (part.strip() for part in FLAGS.noise.split(";"))):
        noises[text] = spec = settings.parse_noise(text)
        if noise.at(spec, "weights") is not None:
            raise UserError(
                f"--noise={text}: acts on weights; expected noise that acts on a "
                "computation or a gradient"
            )
    return [saddles.CATALOGUE[name]() for name in FLAGS.functions], noises


if __name__ == "__main__":
    _cli.run(main)
