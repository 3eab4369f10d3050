"""Follows the growth of a tiny difference between two trainings.

    python experiments/divergence.py

trains twice on the same embedded frames in the same order. The second training starts
from weights that were each moved to a neighbouring number (one ulp); with --noise, it
starts from the same weights and has this noise. Prints the L2 distance of the weights,
both losses, and the finite-time Lyapunov exponent: the growth of ln distance per
update, until the distance reaches a tenth of the distance that the weights have
travelled.

Writes divergence.json to --workdir. A positive exponent means that rounding errors are
amplified. It does not mean that they matter; for that, compare the losses.
"""

import math
from pathlib import Path

import _cli
import _flags
import jax
import numpy as np
from absl import flags

from prednet_jax import curvature, keys, process, records
from prednet_jax.report import documents
from prednet_jax.training import loop, truncated

FLAGS = flags.FLAGS
_flags.define_model_flags(channels="3,6,12", height=24, width=32)
_flags.define_data_flags()
_flags.define_precision_flag()
flags.adopt_module_key_flags(_flags)
flags.DEFINE_integer("window", 10, "Transitions per update, >= 2.")
flags.DEFINE_integer("updates", 250, "Number of updates, at least 5.")
flags.DEFINE_integer("seed", 0, "Root seed of weights, data and noise.")
flags.DEFINE_string(
    "noise",
    None,
    "Noise spec of the second training, such as reduction_order or "
    "gradient_gaussian:scale=1e-6. Default: no noise, but weights that differ by one "
    "ulp.",
)
flags.DEFINE_string("workdir", "results/divergence", "Where to write.")


def main(argv: list[str]) -> None:
    """Checks the flags, trains twice, writes table and JSON."""
    del argv
    process.prepare(cache=True)
    _flags.check_numbers(5, "updates")
    _flags.check_numbers(2, "window")
    result = measure()
    rows = [("update", "distance", "travelled", "loss", "other loss")]
    last = FLAGS.updates
    for t in sorted({t for t in (1, 2, 5, 10, 20, 50, 100, 200, last) if t <= last}):
        away = [f"{result[name][t]:.2e}" for name in ("distance", "travelled")]
        losses = [f"{losses[t - 1]:.5f}" for losses in result["losses"]]
        rows.append((str(t), *away, *losses))
    print(documents.columns(rows, right=range(5)))
    print(result["statement"])
    path = Path(FLAGS.workdir) / "divergence.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_json(path, result)
    print(path)


def measure() -> dict:
    """Trains the two copies and fits the exponent."""
    keys.stream(FLAGS.seed, "init")
    spec = None if FLAGS.noise is None else _flags.parse_noise(FLAGS.noise)
    task, dtype, optimizer, weights, batches = _flags.training(FLAGS.updates)
    params = loop.prepare_params(weights, dtype, None, FLAGS.seed)
    other = loop.prepare_params(weights, dtype, spec, FLAGS.seed)
    if spec is None:
        other = curvature.perturb_one_ulp(params, keys.stream(FLAGS.seed, "probe"))
    key, losses, travelled = keys.stream(FLAGS.seed, "noise"), ([], []), [0.0]
    away = jax.jit(curvature.weight_distance)

    def recorded(update, into: list):
        """The update as a step of `log_distances` that also records the loss."""

        def step(state, batch):
            state, metrics = update(state, *batch, key)
            value = (metrics.frame_losses * metrics.scored).sum() / metrics.scored.sum()
            into.append(float(value))
            if into is losses[0]:
                travelled.append(float(away(state.params, params)))
            return state

        return step

    update = jax.jit(truncated.make_step(task, optimizer))
    noisy = update
    if spec is not None:
        noisy = jax.jit(truncated.make_step(task, optimizer, noise=spec))
    log_distance = curvature.log_distances(
        recorded(update, losses[0]),
        truncated.initial_train_state(task, params, optimizer),
        truncated.initial_train_state(task, other, optimizer),
        batches,
        step_b=recorded(noisy, losses[1]),
        weights=lambda state: state.params,
    )
    return judged(log_distance, np.array(travelled), losses)


def judged(log_distance: np.ndarray, travelled: np.ndarray, losses: tuple) -> dict:
    """The record of a measurement, with the exponent and a sentence."""
    # With noise both start from equal weights, so the growth begins after update 1.
    first, last = 1, curvature.saturation(log_distance, travelled)
    fit, distance = None, np.exp(log_distance)
    finite = np.isfinite(log_distance[first:])
    if not distance[first:].any():
        statement = "the two trainings have equal weights: nothing grows"
    elif not finite.all():
        broken = first + int(np.argmin(finite))
        statement = (
            f"no exponent: the distance is zero or not finite at update {broken}"
        )
    elif last - first < 4:
        statement = (
            f"saturated after update {last}: too early for an exponent "
            "(try a smaller difference)"
        )
    else:
        fit = curvature.fit_exponent(log_distance, first=first, last=last)
        factor = math.exp(log_distance[last] - log_distance[first])
        statement = (
            f"exponent {fit.rate:.4f} per update (95 % interval {fit.low:.4f} to "
            f"{fit.high:.4f}) over updates {first} to {last}: the distance grew by a "
            f"factor of {factor:.3g}"
        )
    tail = max(1, len(losses[0]) // 5)
    means = [float(np.mean(one[-tail:])) for one in losses]
    statement += (
        f"; mean loss of the last {tail} updates {means[0]:.6f} and {means[1]:.6f} "
        f"({100 * (means[1] / means[0] - 1):+.3f} %)"
    )
    return {
        "statement": statement,
        "exponent": fit and fit._asdict(),
        "mean_losses": means,
        "distance": distance.tolist(),
        "log_distance": log_distance.tolist(),
        "travelled": travelled.tolist(),
        "losses": list(losses),
        **_cli.provenance(),
    }


if __name__ == "__main__":
    _cli.run(main)
