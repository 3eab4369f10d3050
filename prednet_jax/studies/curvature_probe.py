"""Curvature along a training: made here, or read from a run's directory.

The network is trained with Adam. Its curvature is that of the training loss without
noise on a probe set: windows that are distributed evenly over the frames of the run,
each from the zero state. The state that training carries differs between stops, but all
stops have to be measured on the same loss.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

from prednet_jax import curvature, data, keys, process, records, tasks
from prednet_jax.data.windows import Schedule
from prednet_jax.errors import UserError
from prednet_jax.objectives import Method
from prednet_jax.report.numbers import text
from prednet_jax.tasks import Adam, Network, Task
from prednet_jax.training import checkpoints, loop, truncated
from prednet_jax.training.trainer import Trainer

# Second derivatives take long to compile; this is the fastest for small networks.
_CONVOLUTION = "xla"
Row = dict[str, Any]


def _rows(
    task: Task,
    seed: int,
    loss: Callable[[dict], jax.Array],
    moments: Callable[[dict], curvature.Moments],
    stops: Iterator[curvature.Stop],
    options: dict[str, Any],
) -> Iterator[Row]:
    """The results of `curvature.probe` at each stop, with the `model` in front."""
    for stop in stops:
        key = jax.random.fold_in(keys.stream(seed, "probe"), stop.update)
        row = curvature.probe(loss, stop, moments(stop.params), key=key, **options)
        yield {"model": task.name} | row


def fresh(
    network: Network,
    *,
    updates: tuple[int, ...],
    window: int,
    samples: int,
    seed: int,
    precision: str,
    **options: Any,
) -> Iterator[Row]:
    """A network that is trained on embedded data while it is measured.

    Args:
        network: a task, or a configuration of this package.
        updates: the stops as numbers of updates, ascending, from 1.
        window: transitions per update, for a network that sees windows.
        samples: number of windows or images in the probe set.
        seed: root seed of weights, data and start vectors.
        precision: `float32` or `float64`.
        options: options of `curvature.probe`, without its key.
    """
    dtype = process.set_precision(precision)
    keys.stream(seed, "init")
    task = tasks.of(network).with_convolution(_CONVOLUTION)
    source = _open(task, None, seed)
    method = Method()
    last = updates[-1]
    optimizer = task.optimizer(last)
    schedule = loop.frame_schedule(task, source, window=window, updates=last)

    def stops() -> Iterator[curvature.Stop]:
        params = loop.prepare_params(loop.initial_params(task, seed), dtype, None, seed)
        state = truncated.initial_train_state(task, params, optimizer)
        trainer = Trainer(task, optimizer, method)
        run = loop.train(trainer, state, source, schedule, seed=seed)
        for state, record in run:
            if record.update in updates:
                yield _stop(state, task.adam(last))

    functions = _probe_set(task, method, source, schedule, dtype, samples)
    return _rows(task, seed, *functions, stops(), options)


def saved(
    folder: Path,
    *,
    updates: tuple[int, ...] | None,
    windows: int,
    images: int,
    precision: str | None,
    **options: Any,
) -> Iterator[Row]:
    """The checkpoints of a run of train.py, rebuilt from its manifest.

    Args:
        folder: the run's directory.
        updates: updates of the checkpoints to measure; None: all.
        windows: windows in the probe set, for a network that sees windows.
        images: images in the probe set, for a network that sees images.
        precision: `float32` or `float64`; None: that of the run.
        options: options of `curvature.probe`, without its key.

    Raises:
        UserError: the directory is not a run of train.py, or lacks a checkpoint.
    """
    manifest = records.read_json(folder / records.MANIFEST)
    chosen = _saved_updates(folder, updates)
    try:
        task = tasks.recorded(manifest["model"], manifest["network"])
        task = task.with_convolution(_CONVOLUTION)
        used, seed = manifest["flags"], manifest["seed"]
        if used.get("sampling", "stream") != "stream":
            raise UserError(f"--run={folder}: expected a run of --sampling=stream")
        weights = used["layer_weights"] and tuple(map(float, used["layer_weights"]))
        method = Method(
            objective=used["objective"],
            targets="true",
            layer_weights=weights or None,
            extrapolate_from=used.get("extrapolate_from"),
        )
        dtype = process.set_precision(precision or used["precision"])
        source = _open(
            task,
            used["data"],
            seed,
            crop=used["crop"],
            allow_outside=used.get("allow_outside", False),
            offset=tuple(int(pixels) for pixels in used["offset"]),
        )
        total, window = used["updates"], used["window"]
        adam = task.adam(total)
        if used["learning_rate"] is not None:
            adam = Adam(used["learning_rate"])
        trained_in = np.dtype(used["precision"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"--run={folder}: {records.MANIFEST} is not that of train.py ({error!r})"
        ) from None
    schedule = loop.frame_schedule(
        task, source, window=window, updates=total, method=method
    )

    def stops() -> Iterator[curvature.Stop]:
        params = loop.prepare_params(
            loop.initial_params(task, seed), trained_in, None, seed
        )
        like = truncated.initial_train_state(task, params, task.optimizer(total))
        for update in chosen:
            yield _stop(checkpoints.restore(folder, update, like), adam, dtype)

    samples = windows if task.windowed else images
    functions = _probe_set(task, method, source, schedule, dtype, samples)
    return _rows(task, seed, *functions, stops(), options)


def _saved_updates(folder: Path, updates: tuple[int, ...] | None) -> Sequence[int]:
    """Checks that these updates were saved; None: all saved updates."""
    found = checkpoints.updates(folder)
    if not found:
        raise UserError(
            f"--run={folder}: no checkpoints; expected a run of train.py with "
            "--checkpoint_every"
        )
    missing = [update for update in updates or () if update not in found]
    if missing:
        raise UserError(
            f"--updates={','.join(map(str, updates or ()))}: {missing[0]} was not "
            f"saved in {folder}; expected some of {', '.join(map(str, found))}"
        )
    return updates or found


def _open(task: Task, name: str | None, seed: int, **crop: Any) -> data.FrameSource:
    height, width, channels = task.frame
    crop |= {"height": height, "width": width, "channels": channels}
    return data.open_source(name or task.data, seed=seed, **crop)


def _stop(
    state: truncated.TrainState,
    adam: Adam,
    dtype: Any = None,
) -> curvature.Stop:
    """Copies the state, since the training overwrites its buffers."""
    copy = functools.partial(jax.tree.map, lambda x: jnp.array(x, dtype, copy=True))
    moments: Any = state.optimizer_state
    update = int(state.update)
    return curvature.Stop(
        update,
        copy(state.params),
        copy(moments.mu),
        copy(moments.nu),
        adam.at(update),
        adam.at(update + 1),
        adam.eps,
    )


def _probe_set(
    task: Task,
    method: Method,
    source: data.FrameSource,
    schedule: Schedule,
    dtype: Any,
    samples: int,
) -> tuple[Callable, Callable]:
    """Mean loss over the samples, and the moments of their gradients."""
    even = np.linspace(0, len(schedule.start) - 1, samples).astype(int)
    places = sorted(set(even.tolist()))
    size = schedule.window + 1
    frames = np.stack(
        [
            source.read(start, start + size)
            for start in np.maximum(schedule.start[places, 0], 0).tolist()
        ],
        axis=1,
    )  # [T + 1, samples, H, W, C]
    pixels = truncated.to_pixels(jnp.asarray(frames), dtype)
    objective = truncated.make_loss(task, method)

    def loss_on(params: dict, frames: jax.Array) -> jax.Array:
        state = truncated.initial_train_state(
            task, params, optax.identity(), batch=frames.shape[1]
        )
        return objective(params, state.carry, frames, jnp.asarray(True))[0]

    @jax.jit
    def moments(params: dict) -> curvature.Moments:
        def add(sums: tuple, frames: jax.Array) -> tuple:
            g = jax.grad(loss_on)(params, frames[:, None])
            squares = jax.tree.map(lambda s, g: s + g * g, sums[1], g)
            return (jax.tree.map(jnp.add, sums[0], g), squares), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        sums, _ = jax.lax.scan(add, (zeros, zeros), jnp.swapaxes(pixels, 0, 1))
        mean = jax.tree.map(lambda s: s / pixels.shape[1], sums)
        return curvature.Moments(*mean)

    return (lambda params: loss_on(params, pixels)), moments


#: The columns of the printed table: heading, width, and the cell by fields of a row.
_COLUMNS = (
    ("model", 11, "{model}"),
    ("update", 6, "{update}"),
    ("loss", 9, "{loss:.3g}"),
    ("|g|", 8, "{grad_norm:.2g}"),
    ("raw low", 9, "{raw.lowest:.3g}{raw.lowest_moves}"),
    ("raw high", 9, "{raw.highest:.3g}{raw.highest_moves}"),
    ("Adam low", 9, "{preconditioned.lowest:.3g}{preconditioned.lowest_moves}"),
    ("Adam high", 9, "{preconditioned.highest:.3g}{preconditioned.highest_moves}"),
    ("negative", 9, "{negative}"),
    ("diff", 9, "{preconditioned.finite_difference.verdict}"),
    ("reach", 7, "{reach:.2g}"),
    ("cos step", 8, "{escape.step_cosine:.3f}"),
    ("growth", 7, "{escape.growth_per_update:.4f}"),
    ("saved", 8, "{escape.updates_saved:.1e}"),
    ("needed", 8, "{escape.noise_for_one_update:.1e}"),
)
HEADER = " ".join(name.rjust(width) for name, width, _ in _COLUMNS)
LEGEND = """\
raw: eigenvalues of H. Adam: eigenvalues of P^-1/2 H P^-1/2; their residuals are in the
record. *: the value still moved by 5 % when the Lanczos steps were last doubled.
negative: whether negative curvature is proved; '-': none was found, which proves
nothing. diff: whether finite differences of the loss along the lowest direction agree.
reach: how far along it they agree, in lengths of Adam's last step. Below 1 the loss
stops being quadratic (at kinks of ReLUs) within one step, and growth and saved hold
near the weights only. cos step: cosine between Adam's last step and that direction.
growth: factor per update along it. saved: updates that relative noise {noise:g} saves.
needed: relative noise that would save one update."""


def line(row: Row) -> str:
    """One line of the table, under `HEADER`."""
    fields = defaultdict(lambda: None, pd.json_normalize(row).to_dict("records")[0])
    if fields["preconditioned.negative_curvature_proved"]:
        fields["negative"] = "proved"
    for form in ("raw", "preconditioned"):
        for end, converged in zip(
            ("lowest", "highest"), row[form]["converged"], strict=True
        ):
            fields[f"{form}.{end}_moves"] = "" if converged else "*"
    if row["escape"]:
        reach = row["preconditioned"]["finite_difference"]["reach"]
        fields["reach"] = reach / row["escape"]["step_length"]
    return " ".join(text(cell, fields).rjust(width) for _, width, cell in _COLUMNS)


def findings(rows: list[Row], noise: float) -> list[str]:
    """The findings, one sentence per model, computed from the rows."""
    said = []
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        proved = [r for r in mine if r["preconditioned"]["negative_curvature_proved"]]
        words = f"{model}: negative curvature proved at {len(proved)} of {len(mine)} "
        words += "stops"
        if len(proved) < len(mine):
            words += " (at the others it was not found, which proves nothing)"
        if proved:
            checks = [r["preconditioned"]["finite_difference"] for r in proved]
            agree = [check["verdict"] for check in checks].count("agrees")
            escapes = [row["escape"] for row in proved]
            most = max(escape["updates_saved"] for escape in escapes)
            least = min(escape["noise_for_one_update"] for escape in escapes)
            words += (
                f"; differences of the loss agree at {agree} of these; noise of "
                f"{noise:g} of the gradient would save at most {most:.1e} updates, one "
                f"update takes {least:.1e}"
            )
        sampled = [row["sampling_noise"] for row in mine if row["sampling_noise"]]
        if sampled:
            words += f" (gradients differ by {min(sampled):.2g} from sample to sample)"
        said.append(words + ".")
    return said
