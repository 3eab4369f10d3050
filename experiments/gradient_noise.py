"""Measures how far each noise moves the gradient of a training step.

    python experiments/gradient_noise.py
    python experiments/gradient_noise.py --model=autoencoder

trains without noise, and before some of the updates takes the gradient under each noise
with many keys, at the same weights and frames. Of each noise it prints, in units of the
norm of the clean gradient,

    spread  root mean square distance of the noisy gradients from their expected value
    shift   distance of their mean from the clean gradient; its square holds that of the
            spread, divided by the number of keys, which more keys would remove

and V_c, the fraction of elements that differ from the clean gradient. The spread of
`reduction_order` is the scale at which `gradient_gaussian` is its like in size: the
matched rung of the comparison's ladder.

Writes gradient_noise.json to --workdir.
"""

from pathlib import Path

import common
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
common.define_model_flags(channels="3,6,12", height=24, width=32)
common.define_data_flags()
flags.adopt_module_key_flags(common)
flags.DEFINE_integer("window", 10, "Transitions an update, >= 2.")
flags.DEFINE_list("updates", ["1", "50", "200"], "Updates whose gradient is taken.")
flags.DEFINE_integer("seed", 0, "Root seed of weights, data and noise.")
flags.DEFINE_integer("keys", 16, "Noisy gradients of each kind, at least 2.")
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
flags.DEFINE_enum("precision", "float32", ["float32", "float64"], "Of everything.")
flags.DEFINE_string("workdir", "results/gradient_noise", "Where to write.")


def main(argv: list[str]) -> None:
    """Checks the flags, measures, prints and writes."""
    del argv
    stops = common.integers("updates", FLAGS.updates) or ()
    if not stops or min(stops) < 1:
        raise ValueError(
            f"--updates={','.join(FLAGS.updates)}: expected whole numbers of at least "
            "1, such as 1,50"
        )
    for name, low in (("keys", 2), ("window", 2)):
        if getattr(FLAGS, name) < low:
            raise ValueError(
                f"--{name}={getattr(FLAGS, name)}: expected at least {low}"
            )
    specs = {text: gradient_noise(text) for text in FLAGS.noise}
    from prednet_jax import backends, records

    rows = []
    print(f"{'update':>6} {'spread':>9} {'shift':>9} {'V_c':>5}  noise")
    for row in measure(specs, sorted(set(stops))):
        rows.append(row)
        print(
            f"{row['update']:6d} {row['spread']:9.2e} {row['shift']:9.2e} "
            f"{row['v_c']:5.2f}  {row['noise']}",
            flush=True,
        )
    for text in specs:
        found = [row["spread"] for row in rows if row["noise"] == text]
        print(
            f"{text}: spread {min(found):.1e} to {max(found):.1e} of the gradient, "
            f"median {np.median(found):.1e}"
        )
    folder = Path(FLAGS.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "command": common.command(),
        "device": backends.device_description(),
        "versions": records.versions(),
        "keys": FLAGS.keys,
        "rows": rows,
    }
    records.write_json(folder / "gradient_noise.json", result)
    print(folder / "gradient_noise.json")


def gradient_noise(text: str):
    """A spec all of whose parts act on the gradient or on what it is computed by."""
    from prednet_jax import noise

    spec = noise.parse(text)
    if spec == noise.Identity() or noise.at(spec, "weights") is not None:
        raise ValueError(
            f"--noise={text}: expected noise of a computation or a gradient, such as "
            "reduction_order"
        )
    return spec


def measure(specs: dict, stops: list[int]):
    """Yields a row for each stop and noise, in that order."""
    import jax

    from prednet_jax import keys, noise
    from prednet_jax.noise import variability
    from prednet_jax.training import loop, truncated

    key = keys.stream(FLAGS.seed, "noise")
    config, dtype, optimizer, weights, batches = common.training(stops[-1])
    params = loop.prepare_params(weights, dtype, None, FLAGS.seed)
    state = truncated.initial_train_state(config, params, optimizer)
    update = jax.jit(truncated.make_step(config, optimizer))
    loss = truncated.make_loss(config, truncated.Method())

    def gradient(params, carry, frames, first):
        frames = truncated.to_pixels(frames, dtype)
        return jax.grad(loss, has_aux=True)(params, carry, frames, first)[0]

    def noisy(spec):
        inside, outside = noise.at(spec, "computation"), noise.at(spec, "gradient")

        def run(key, *inputs):
            of_gradient, on_gradient = jax.random.split(key)
            within = noise.inject(gradient, inside or noise.Identity())
            found = within(of_gradient, *inputs)
            if outside is not None:
                found = noise.perturb_tree(outside, on_gradient, found)
            return found

        return jax.jit(run)

    clean = jax.jit(gradient)
    programs = {text: noisy(spec) for text, spec in specs.items()}
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
    common.run(main)
