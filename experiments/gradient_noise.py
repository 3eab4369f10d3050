"""Measures how far each noise moves the gradient of a training step.

    python experiments/gradient_noise.py
    python experiments/gradient_noise.py --model=autoencoder

trains without noise. Before some of the updates it computes the gradient under each
noise with many keys, at the same weights and frames. For each noise it prints, in units
of the norm of the clean gradient,

    spread  root mean square distance of the noisy gradients from their expected value
    shift   distance of the mean of the noisy gradients from the clean gradient. Its
            square includes that of the spread divided by the number of keys

and V_c, the fraction of elements that differ from the clean gradient. With the spread
of `reduction_order` as its scale, `gradient_gaussian` has noise of the same size.

Writes gradient_noise.json to --workdir.
"""

from pathlib import Path

import _cli
import _flags
import jax
import numpy as np
from absl import flags

from prednet_jax import device, keys, noise, process, records
from prednet_jax.errors import UserError
from prednet_jax.noise import variability
from prednet_jax.objectives import Method
from prednet_jax.studies.saddle_escape import noisy_gradient
from prednet_jax.training import loop, truncated

FLAGS = flags.FLAGS
_flags.define_model_flags(channels="3,6,12", height=24, width=32)
_flags.define_data_flags()
_flags.define_precision_flag()
flags.adopt_module_key_flags(_flags)
flags.DEFINE_integer("window", 10, "Transitions per update, >= 2.")
flags.DEFINE_list(
    "updates", ["1", "50", "200"], "Updates at which the gradient is measured."
)
flags.DEFINE_integer("seed", 0, "Root seed of weights, data and noise.")
flags.DEFINE_integer("keys", 16, "Number of noisy gradients per noise, at least 2.")
flags.DEFINE_multi_string(
    "noise",
    [
        "reduction_order:granularity=shared",
        "reduction_order:granularity=tile",
        "reduction_order:granularity=element",
        "stochastic_rounding",
        "ulp",
    ],
    "Noise spec, such as reduction_order or gaussian:scale=1e-7; may be repeated.",
)
flags.DEFINE_string("workdir", "results/gradient_noise", "Where to write.")


def main(argv: list[str]) -> None:
    """Checks the flags, measures, prints and writes."""
    del argv
    process.prepare(cache=True)
    stops = _flags.integers("updates")
    if not stops or min(stops) < 1:
        raise UserError(
            f"--updates={','.join(FLAGS.updates)}: expected whole numbers of at least "
            "1, such as 1,50"
        )
    _flags.check_numbers(2, "keys", "window")
    specs = {text: gradient_noise(text) for text in FLAGS.noise}
    print(f"{'update':>6} {'spread':>9} {'shift':>9} {'V_c':>5}  noise")
    rows = []
    for row in measure(specs, sorted(set(stops))):
        rows.append(row)
        shown = "{update:6d} {spread:9.2e} {shift:9.2e} {v_c:5.2f}  {noise}"
        print(shown.format_map(row), flush=True)
    for text in specs:
        spreads = [row["spread"] for row in rows if row["noise"] == text]
        print(
            f"{text}: spread {min(spreads):.1e} to {max(spreads):.1e} of the gradient, "
            f"median {np.median(spreads):.1e}"
        )
    path = Path(FLAGS.workdir) / "gradient_noise.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"device": device.description(), "keys": FLAGS.keys}
    records.write_json(path, {**_cli.provenance(), **about, "rows": rows})
    print(path)


def gradient_noise(text: str):
    """A spec that acts on the gradient or on its computation, not on weights."""
    spec = _flags.parse_noise(text)
    if spec == noise.Identity() or noise.at(spec, "weights") is not None:
        raise UserError(
            f"--noise={text}: expected noise of a computation or a gradient, such as "
            "reduction_order"
        )
    return spec


def measure(specs: dict, stops: list[int]):
    """Yields one row per stop and noise, in that order."""
    key = keys.stream(FLAGS.seed, "noise")
    task, dtype, optimizer, weights, batches = _flags.training(stops[-1])
    params = loop.prepare_params(weights, dtype, None, FLAGS.seed)
    state = truncated.initial_train_state(task, params, optimizer)
    update = jax.jit(truncated.make_step(task, optimizer))
    loss = truncated.make_loss(task, Method())

    def gradient(params, carry, frames, first):
        frames = truncated.to_pixels(frames, dtype)
        return jax.grad(loss, has_aux=True)(params, carry, frames, first)[0]

    clean = jax.jit(gradient)
    programs = {
        text: jax.jit(noisy_gradient(gradient, spec)) for text, spec in specs.items()
    }
    for number, (frames, first) in enumerate(batches, 1):
        if number in stops:
            inputs = (state.params, state.carry, frames, first)
            exact = clean(*inputs)
            here = jax.random.split(jax.random.fold_in(key, number), FLAGS.keys)
            for text, program in programs.items():
                found = [program(k, *inputs) for k in here]
                spread, shift = variability.spread_and_shift(exact, found)
                differing = [variability.v_c(exact, other) for other in found]
                yield {
                    "update": number,
                    "noise": text,
                    "spec": noise.format(specs[text], defaults=True),
                    "spread": spread,
                    "shift": shift,
                    "v_c": float(np.mean(differing)),
                }
        state, _ = update(state, frames, first, key)


if __name__ == "__main__":
    _cli.run(main)
