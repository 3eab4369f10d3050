"""Probes the curvature of the loss along training: are there saddles, would noise help?

    python experiments/probe_curvature.py

trains a small PredNet and a small autoencoder on embedded data and stops at some
updates; or, at the checkpoints of a run of train.py,

    python experiments/probe_curvature.py --run=runs/first

At each stop, on the clean loss of a fixed probe set: the norm of the gradient, the
lowest and highest eigenvalue of the Hessian H and of P^-1/2 H P^-1/2 (P: the scale by
which Adam divides) with residuals, the projection of the optimiser's last step on the
direction of lowest curvature, and how many updates noise would save there.

Writes probe_curvature.json and probe_curvature.png to --workdir. Read the table with
two limits in mind: negative curvature can be proved, its absence cannot; and the saving
assumes that P and the local quadratic stay as they are during the escape.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import common
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("run", None, "Directory of a train.py run with checkpoints.")
flags.DEFINE_list("models", list(common.MODELS), "Networks to train without --run.")
flags.DEFINE_list(
    "updates",
    None,
    "Updates to stop at. Default: 1,10,50,250; all saved ones of --run.",
)
flags.DEFINE_list("channels", ["3", "6"], "Widths of PredNet, without --run.")
flags.DEFINE_integer("height", 12, "Rows of PredNet's frames, without --run.")
flags.DEFINE_integer("width", 16, "Columns of PredNet's frames, without --run.")
flags.DEFINE_integer("window", 6, "Transitions an update, without --run.")
flags.DEFINE_list("hidden", ["32", "8", "32"], "Autoencoder's widths, without --run.")
flags.DEFINE_integer("seed", 0, "Root seed of weights, data and probes, without --run.")
flags.DEFINE_enum(
    "precision", None, ["float32", "float64"], "Default: float32; --run: the run's own."
)
flags.DEFINE_integer("windows", 4, "Windows in the probe set of a PredNet.")
flags.DEFINE_integer("images", 32, "Images in the probe set of an autoencoder.")
flags.DEFINE_integer("steps", 60, "Lanczos steps of the first round.")
flags.DEFINE_integer(
    "max_steps",
    None,
    "Steps double up to this while a value still moves by 5 %. Default: --steps, since "
    "each doubling compiles anew.",
)
flags.DEFINE_integer("starts", 2, "Random start vectors a round.")
flags.DEFINE_float(
    "noise",
    2.7e-7,
    "Relative gradient noise whose saving is predicted; default: random summation "
    "order in float32, as measured.",
)
flags.DEFINE_string("workdir", "results/probe_curvature", "Where to write.")
B1, B2 = 0.9, 0.999


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Weights after some updates, with Adam's running means."""

    update: int
    params: dict
    mu: dict
    nu: dict


@dataclasses.dataclass(frozen=True)
class Subject:
    """One training to be probed."""

    model: str
    loss: Callable  # Weights to the mean loss over the probe set.
    moments: Callable  # Weights to mean and mean square of the samples' gradients.
    rate: Callable  # Update (from 1) to its learning rate.
    eps: float
    seed: int
    snapshots: Iterator[Snapshot]


def main(argv: list[str]) -> None:
    """Checks the flags, probes every subject, writes table, JSON and figure."""
    del argv
    for name in ("windows", "images", "steps", "starts"):
        if getattr(FLAGS, name) < 1:
            raise ValueError(f"--{name}={getattr(FLAGS, name)}: expected at least 1")
    if FLAGS.max_steps is not None and FLAGS.max_steps < FLAGS.steps:
        raise ValueError(
            f"--max_steps={FLAGS.max_steps}: expected at least --steps={FLAGS.steps}"
        )
    if not 0.0 < FLAGS.noise < math.inf:
        raise ValueError(f"--noise={FLAGS.noise}: expected a positive number")
    updates = common.integers("updates", FLAGS.updates)
    if updates is not None and (not updates or min(updates) < 1):
        raise ValueError(
            f"--updates={','.join(FLAGS.updates)}: expected numbers from 1, "
            "such as 1,10,50"
        )
    common.use_compilation_cache()
    if FLAGS.run:
        subjects = [saved_subject(Path(FLAGS.run), updates)]
    else:
        unknown = [m for m in FLAGS.models if m not in common.MODELS]
        if unknown or not FLAGS.models:
            raise ValueError(
                f"--models={','.join(FLAGS.models)}: expected some of "
                f"{', '.join(common.MODELS)}"
            )
        stops = tuple(sorted(set(updates or (1, 10, 50, 250))))
        subjects = [fresh_subject(model, stops) for model in FLAGS.models]
    rows = []
    print(HEADER)
    for subject in subjects:
        for snapshot in subject.snapshots:
            rows.append(probe(subject, snapshot))
            print(line(rows[-1]), flush=True)
    write(rows, Path(FLAGS.workdir))


def fresh_subject(model: str, stops: tuple[int, ...]) -> Subject:
    """A small network, trained here while its snapshots are taken."""
    from prednet_jax import backends, data, keys
    from prednet_jax.config import AutoencoderConfig, PredNetConfig
    from prednet_jax.training import loop, truncated

    dtype = backends.set_precision(FLAGS.precision or "float32")
    keys.stream(FLAGS.seed, "init")
    if model == "autoencoder":
        config = AutoencoderConfig(hidden=common.integers("hidden", FLAGS.hidden))
        source = data.open_source("digits", height=28, width=28, seed=FLAGS.seed)
    else:
        config = PredNetConfig(
            channels=common.integers("channels", FLAGS.channels),
            height=FLAGS.height,
            width=FLAGS.width,
            # Compiles fastest; a second derivative takes long.
            convolution="xla",
        )
        size = {"height": FLAGS.height, "width": FLAGS.width}
        size["channels"] = config.channels[0]
        source = data.open_source("walk", seed=FLAGS.seed, **size)
    method = truncated.Method()
    optimizer = loop.default_optimizer(config, stops[-1])
    schedule = loop.frame_schedule(
        config, source, window=FLAGS.window, updates=stops[-1]
    )
    params = loop.initial_params(config, FLAGS.seed)

    def snapshots() -> Iterator[Snapshot]:
        state = truncated.initial_train_state(
            config, loop.prepare_params(params, dtype, None, FLAGS.seed), optimizer
        )
        update = loop.compile_update(config, optimizer, method, None)
        run = loop.train(update, state, source, schedule, seed=FLAGS.seed)
        for state, record in run:
            if record.update in stops:
                yield snapshot_of(state)

    loss, moments = probe_losses(config, method, source, schedule, dtype)
    rate, eps = adam_settings(config, stops[-1], None)
    return Subject(model, loss, moments, rate, eps, FLAGS.seed, snapshots())


def saved_subject(folder: Path, wanted: tuple[int, ...] | None) -> Subject:
    """The checkpoints of a run of train.py, rebuilt from its manifest."""
    from prednet_jax import backends, data, records
    from prednet_jax.config import AutoencoderConfig, PredNetConfig
    from prednet_jax.training import checkpoints, loop, truncated

    manifest = records.read_json(folder / records.MANIFEST)
    saved = checkpoints.updates(folder)
    if not saved:
        raise ValueError(
            f"--run={folder}: no checkpoints; expected a run of train.py with "
            "--checkpoint_every"
        )
    missing = [update for update in wanted or () if update not in saved]
    if missing:
        raise ValueError(
            f"--updates={','.join(FLAGS.updates)}: {missing[0]} was not saved in "
            f"{folder}; expected some of {', '.join(map(str, saved))}"
        )
    try:
        model, used, seed = manifest["model"], manifest["flags"], manifest["seed"]
        kind = AutoencoderConfig if model == "autoencoder" else PredNetConfig
        network = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in manifest["network"].items()
        }
        if model == "prednet":
            # Hessian products need XLA's own convolutions (models/unroll.py).
            network["convolution"] = "xla"
        config = kind(**network)
        weights = used["layer_weights"] and tuple(map(float, used["layer_weights"]))
        method = truncated.Method(
            objective=used["objective"],
            targets="true",
            layer_weights=weights or None,
        )
        dtype = backends.set_precision(FLAGS.precision or used["precision"])
        source = data.open_source(
            used["data"] or ("digits" if model == "autoencoder" else "walk"),
            height=config.height,
            width=config.width,
            channels=config.channels if model == "autoencoder" else config.channels[0],
            seed=seed,
            crop=used["crop"],
            offset=tuple(int(pixels) for pixels in used["offset"]),
        )
        total, window = used["updates"], used["window"]
        rate, eps = adam_settings(config, total, used["learning_rate"])
        trained_in = used["precision"]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"--run={folder}: {records.MANIFEST} is not that of train.py ({error!r})"
        ) from None
    schedule = loop.frame_schedule(config, source, window=window, updates=total)

    def snapshots() -> Iterator[Snapshot]:
        import jax
        import numpy as np

        optimizer = loop.default_optimizer(config, total)
        params = loop.prepare_params(
            loop.initial_params(config, seed), np.dtype(trained_in), None, seed
        )
        like = truncated.initial_train_state(config, params, optimizer)
        for update in wanted or saved:
            state = checkpoints.restore(folder, update, like)
            found = snapshot_of(state)
            cast = functools.partial(
                jax.tree.map, lambda x: jax.numpy.asarray(x, dtype)
            )
            yield Snapshot(update, cast(found.params), cast(found.mu), cast(found.nu))

    loss, moments = probe_losses(config, method, source, schedule, dtype)
    return Subject(model, loss, moments, rate, eps, seed, snapshots())


def snapshot_of(state) -> Snapshot:
    """Copies what is needed: the training reuses the buffers of its state."""
    import jax
    import numpy as np

    adam = state.optimizer_state
    copy = functools.partial(jax.tree.map, np.array)
    return Snapshot(int(state.update), copy(state.params), copy(adam.mu), copy(adam.nu))


def adam_settings(config, updates: int, constant: float | None) -> tuple:
    """Learning rate by update and epsilon, as train.py chooses them."""
    from prednet_jax import optimizers

    if constant is not None:
        return (lambda update: constant), 1e-8
    if getattr(config, "variant", None) == "lotter":
        schedule = optimizers.lotter_schedule(updates)
        return (lambda update: float(schedule(update - 1))), 1e-7
    return (lambda update: 1e-3), 1e-8


def probe_losses(config, method, source, schedule, dtype) -> tuple[Callable, Callable]:
    """The clean training loss on windows spread over what the run sees.

    Each window starts from the zero state: the carried state belongs to one moment of
    one run, and the probes of all stops have to be of one and the same loss.
    """
    import jax
    import numpy as np

    from prednet_jax.training import truncated

    count = FLAGS.windows if schedule.window else FLAGS.images
    places = np.linspace(0, len(schedule.start) - 1, count).astype(int)
    places = sorted(set(places.tolist()))
    size = schedule.window + 1
    frames = np.stack(
        [
            source.read(start, start + size)
            for start in np.maximum(schedule.start[places], 0).tolist()
        ],
        axis=1,
    )  # [T + 1, samples, H, W, C]
    frames = truncated.to_pixels(jax.numpy.asarray(frames), dtype)
    objective = truncated.make_loss(config, method)

    def loss_on(params: dict, frames: jax.Array) -> jax.Array:
        state = truncated.initial_train_state(
            config, params, common_identity(), batch=frames.shape[1]
        )
        return objective(params, state.carry, frames, jax.numpy.asarray(True))[0]

    @jax.jit
    def moments(params: dict) -> tuple[dict, dict]:
        def add(sums: tuple, frames: jax.Array) -> tuple:
            g = jax.grad(loss_on)(params, frames[:, None])
            squares = jax.tree.map(lambda s, g: s + g * g, sums[1], g)
            return (jax.tree.map(jax.numpy.add, sums[0], g), squares), None

        zeros = jax.tree.map(jax.numpy.zeros_like, params)
        sums, _ = jax.lax.scan(add, (zeros, zeros), jax.numpy.swapaxes(frames, 0, 1))
        return jax.tree.map(lambda s: s / frames.shape[1], sums)

    return (lambda params: loss_on(params, frames)), moments


def common_identity():
    """An optimiser without state: only the recurrent state is asked for."""
    import optax

    return optax.identity()


def probe(subject: Subject, snapshot: Snapshot) -> dict:
    """Everything measured at one stop."""
    import jax
    import jax.numpy as jnp

    from prednet_jax import curvature, keys

    t, params = snapshot.update, jax.tree.map(jnp.asarray, snapshot.params)
    mean, mean_square = subject.moments(params)
    # The scale of the update to come, in expectation over the samples: weights that no
    # gradient has reached yet would otherwise count with P = eps.
    ahead = jax.tree.map(lambda v, s: B2 * v + (1.0 - B2) * s, snapshot.nu, mean_square)
    adam = functools.partial(curvature.adam_scale, b1=B1, b2=B2, eps=subject.eps)
    scale, last_scale = adam(ahead, t + 1), adam(snapshot.nu, t)
    rate = subject.rate(t)
    last_step = jax.tree.map(lambda m, p: -rate * m / p, snapshot.mu, last_scale)

    key = jax.random.fold_in(keys.stream(subject.seed, "probe"), t)
    search = functools.partial(
        curvature.certify,
        subject.loss,
        params,
        steps=FLAGS.steps,
        max_steps=FLAGS.max_steps or FLAGS.steps,
        starts=FLAGS.starts,
    )
    # Ones, and not None, so that both forms are one compiled program.
    raw = search(key=key, scale=jax.tree.map(jnp.ones_like, params))
    scaled = search(key=jax.random.fold_in(key, 1), scale=scale)
    norm = math.sqrt(sum(float(jnp.vdot(g, g)) for g in jax.tree.leaves(mean)))
    total = sum(float(jnp.sum(s)) for s in jax.tree.leaves(mean_square))
    row = {
        "model": subject.model,
        "update": t,
        "parameters": raw.dimension,
        "loss": float(subject.loss(params)),
        "grad_norm": norm,
        "sampling_noise": math.sqrt(max(0.0, total - norm**2)) / norm if norm else None,
        "raw": summary(raw),
        "preconditioned": summary(scaled),
        "escape": None,
    }
    if scaled.negative_curvature_proved and norm:
        row["escape"] = escape(
            scaled, mean, last_step, scale, norm=norm, rate=subject.rate(t + 1)
        )
    return row


def summary(report) -> dict:
    """A report as JSON holds it."""
    low, high = (float(residual) for residual in report.pairs.residuals)
    check = report.finite_difference
    return {
        "lowest": report.lowest,
        "highest": report.highest,
        "residual_lowest": low,
        "residual_highest": high,
        "rounding": report.rounding,
        "steps": report.steps,
        "converged": list(report.converged),
        "spread": list(report.spread),
        "negative_curvature_proved": report.negative_curvature_proved,
        "statement": report.statement,
        "finite_difference": dataclasses.asdict(check) | {"verdict": check.verdict},
    }


def escape(report, gradient, last_step, scale, *, norm: float, rate: float) -> dict:
    """The optimiser on the direction of lowest preconditioned curvature."""
    from prednet_jax import curvature

    state = curvature.escape_state(
        gradient, last_step, report.pairs.vectors[0], report.lowest, scale=scale
    )
    growth = curvature.growth(
        state.gamma, learning_rate=rate, momentum=B1, averaged=True
    )
    # Isotropic noise whose whole length is a fraction of the gradient's.
    unit = norm / math.sqrt(report.dimension) * state.noise_gain
    c_sigma = curvature.noise_projection(FLAGS.noise * unit, growth)
    c = state.projection(growth)
    # c_sigma is proportional to the noise, so the noise that saves one update follows.
    useful = curvature.useful_projection(c_sigma, growth)
    return {
        "growth_per_update": growth.fast,
        "step_projection": state.step,
        "step_cosine": state.step_cosine,
        "displacement": state.displacement,
        "projection": c,
        "noise": FLAGS.noise,
        "noise_projection": c_sigma,
        "useful_projection": useful,
        "updates_saved": curvature.updates_saved(c, c_sigma, growth),
        "noise_for_one_update": FLAGS.noise * c / useful,
    }


COLUMNS = (
    ("model", 11),
    ("update", 6),
    ("loss", 9),
    ("|g|", 8),
    ("raw low", 10),
    ("resid", 7),
    ("raw high", 9),
    ("Adam low", 10),
    ("resid", 7),
    ("Adam high", 9),
    ("negative", 8),
    ("cos step", 8),
    ("growth", 7),
    ("saved", 8),
    ("needed", 8),
)
HEADER = " ".join(name.rjust(width) for name, width in COLUMNS)
LEGEND = """\
raw: eigenvalues of H; Adam: of P^-1/2 H P^-1/2; resid: an eigenvalue is this near.
negative: proved, or '-': not found, which proves nothing; a star: still moving when
the steps ran out. cos step: of Adam's last step and the direction of lowest curvature.
growth: factor an update along it. saved: updates that relative noise {noise:g} saves.
needed: relative noise that would save one update."""


def line(row: dict) -> str:
    """One line of the table."""
    raw, scaled, found = row["raw"], row["preconditioned"], row["escape"]
    proved = "proved" if scaled["negative_curvature_proved"] else "-"
    cells = [
        row["model"],
        row["update"],
        f"{row['loss']:.3g}",
        f"{row['grad_norm']:.2g}",
        f"{raw['lowest']:.3g}" + ("" if raw["converged"][0] else "*"),
        f"{raw['residual_lowest']:.0e}",
        f"{raw['highest']:.3g}" + ("" if raw["converged"][1] else "*"),
        f"{scaled['lowest']:.3g}" + ("" if scaled["converged"][0] else "*"),
        f"{scaled['residual_lowest']:.0e}",
        f"{scaled['highest']:.3g}" + ("" if scaled["converged"][1] else "*"),
        proved,
    ]
    if found:
        cells += [
            f"{found['step_cosine']:.3f}",
            f"{found['growth_per_update']:.4f}",
            f"{found['updates_saved']:.1e}",
            f"{found['noise_for_one_update']:.1e}",
        ]
    else:
        cells += ["-"] * 4
    widths = [width for _, width in COLUMNS]
    return " ".join(str(c).rjust(w) for c, w in zip(cells, widths, strict=True))


def write(rows: list[dict], folder: Path) -> None:
    """JSON and figure, each whole or not at all."""
    from prednet_jax import records

    print(LEGEND.format(noise=FLAGS.noise))
    folder.mkdir(parents=True, exist_ok=True)
    records.write_json(
        folder / "probe_curvature.json",
        {
            "rows": rows,
            "flags": {
                flag.name: flag.value
                for flag in FLAGS.get_key_flags_for_module("__main__")
            },
            "versions": records.versions(),
            "git_commit": records.git_commit(Path(__file__).parent),
        },
    )
    records.write_bytes(folder / "probe_curvature.png", figure(rows))
    print(f"{folder / 'probe_curvature.json'}  {folder / 'probe_curvature.png'}")


def figure(rows: list[dict]) -> bytes:
    """Lowest curvature, and the noise that would save an update, along training."""
    import io

    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawing, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    smallest = min(
        [abs(row[form]["lowest"]) for row in rows for form in ("raw", "preconditioned")]
    )
    for i, model in enumerate(dict.fromkeys(row["model"] for row in rows)):
        mine = [row for row in rows if row["model"] == model]
        for form, style in (("raw", "o--"), ("preconditioned", "o-")):
            left.plot(
                [row["update"] for row in mine],
                [row[form]["lowest"] for row in mine],
                style,
                color=f"C{i}",
                label=f"{model}, {form}",
            )
        found = [row for row in mine if row["escape"]]
        right.plot(
            [row["update"] for row in found],
            [row["escape"]["noise_for_one_update"] for row in found],
            "o-",
            color=f"C{i}",
            label=f"{model}: to save one update",
        )
        sampled = [row for row in mine if row["sampling_noise"]]
        right.plot(
            [row["update"] for row in sampled],
            [row["sampling_noise"] for row in sampled],
            ":",
            color=f"C{i}",
            label=f"{model}: from sample to sample",
        )
    left.axhline(0.0, color="0.7", linewidth=0.8)
    left.set_yscale("symlog", linthresh=max(smallest, 1e-12))
    left.set(xlabel="update", ylabel="lowest eigenvalue", xscale="log")
    left.legend(fontsize="small")
    right.axhline(FLAGS.noise, color="0.3", label=f"asked about: {FLAGS.noise:g}")
    right.set(xlabel="update", ylabel="noise / gradient", xscale="log", yscale="log")
    right.legend(fontsize="small")
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=150)
    plt.close(drawing)
    return buffer.getvalue()


if __name__ == "__main__":
    common.run(main)
