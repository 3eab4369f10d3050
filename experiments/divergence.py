"""Follows the growth of a tiny difference between two trainings.

    python experiments/divergence.py

trains twice on the same embedded frames in the same order. The second training starts
from weights that were each moved to a neighbouring number (one ulp); with --noise, it
starts from the same weights and has this noise. Prints the L2 distance of the weights,
both losses, and the finite-time Lyapunov exponent: the growth of ln distance per
update, until the distance reaches a tenth of the distance that the weights have
travelled.

Writes divergence.json and divergence.png to --workdir. A positive exponent means that
rounding errors are amplified. It does not mean that they matter; for that, compare the
losses.
"""

import math
from pathlib import Path

import _cli
import _flags
import jax
import numpy as np
from absl import flags

from prednet_jax import curvature, keys, process, records
from prednet_jax.report import charts
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
    """Checks the flags, trains twice, writes table, JSON and figure."""
    del argv
    process.prepare(cache=True)
    _flags.check_numbers(5, "updates")
    _flags.check_numbers(2, "window")
    result = measure()
    last = len(result["log_distance"]) - 1
    print(
        f"{'update':>6} {'distance':>9} {'travelled':>9} {'loss':>9} {'other loss':>10}"
    )
    for t in sorted({t for t in (0, 1, 2, 5, 10, 20, 50, 100, 200, last) if t <= last}):
        losses = [result["losses"][i][t - 1] if t else math.nan for i in (0, 1)]
        print(
            f"{t:6d} {result['distance'][t]:9.2e} {result['travelled'][t]:9.2e} "
            f"{losses[0]:9.5f} {losses[1]:10.5f}"
        )
    print(result["statement"])
    folder = Path(FLAGS.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    records.write_json(folder / "divergence.json", result)
    records.write_bytes(folder / "divergence.png", figure(result))
    print(f"{folder / 'divergence.json'}  {folder / 'divergence.png'}")


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
    first = 1
    last = curvature.saturation(log_distance, travelled)
    exponent = None
    distance = np.exp(log_distance)
    if not distance[first:].any():
        statement = "the two trainings have equal weights: nothing grows"
    elif not np.isfinite(log_distance[first:]).all():
        broken = first + int(np.argmin(np.isfinite(log_distance[first:])))
        statement = (
            f"no exponent: the distance is zero or not finite at update {broken}"
        )
    elif last - first < 4:
        statement = (
            f"saturated after update {last}: too early for an exponent "
            "(try a smaller difference)"
        )
    else:
        exponent = curvature.fit_exponent(log_distance, first=first, last=last)
        factor = math.exp(log_distance[last] - log_distance[first])
        statement = (
            f"exponent {exponent.rate:.4f} per update (95 % interval "
            f"{exponent.low:.4f} to {exponent.high:.4f}) over updates {first} to "
            f"{last}: the distance grew by a factor of {factor:.3g}"
        )
        exponent = exponent._asdict()
    tail = max(1, len(losses[0]) // 5)
    means = [float(np.mean(one[-tail:])) for one in losses]
    statement += (
        f"; mean loss of the last {tail} updates {means[0]:.6f} and {means[1]:.6f} "
        f"({100 * (means[1] / means[0] - 1):+.3f} %)"
    )
    return {
        "statement": statement,
        "exponent": exponent,
        "mean_losses": means,
        "distance": distance.tolist(),
        "log_distance": log_distance.tolist(),
        "travelled": travelled.tolist(),
        "losses": list(losses),
        **_cli.provenance(),
    }


def figure(result: dict) -> bytes:
    """Distance and losses along training."""
    first, second = result["losses"]
    distances = {
        "between the two": enumerate(result["distance"][1:], 1),
        "from the start": enumerate(result["travelled"][1:], 1),
    }
    if fit := result["exponent"]:
        start, end = fit["first"], fit["last"]
        ends = [result["distance"][start]]
        ends.append(ends[0] * math.exp(fit["rate"] * (end - start)))
        distances[f"{fit['rate']:.3f} per update"] = zip(
            (start, end), ends, strict=True
        )
    losses = {"first": enumerate(first, 1), "second": enumerate(second, 1)}
    panels = []
    for title, lines in (("L2 distance of weights", distances), ("loss", losses)):
        rows = [
            {"update": update, "value": value, "line": name}
            for name, points in lines.items()
            for update, value in points
            if value > 0 and math.isfinite(value)
        ]
        encoding = {
            "x": charts.channel("update", "update"),
            "y": charts.channel("value", title, type="log"),
            "color": charts.names("line"),
            "strokeDash": charts.names("line"),
        }
        drawn = charts.layer("line", encoding, data=rows)
        panels.append({"width": 380, "height": 280, **drawn})
    scales = {"color": "independent", "strokeDash": "independent"}
    return charts.png({"hconcat": panels, "resolve": {"scale": scales}})


if __name__ == "__main__":
    _cli.run(main)
