"""Does numerical noise help gradient descent to leave a saddle?

    python experiments/saddle_escape.py

Runs functions with known saddles x optimisers x noises x precisions x forms over many
keys, all from starts that exact arithmetic would never leave. A form is "aligned" (the
escape direction is a coordinate, so rounding never reaches it) or "rotated" (rounding
reaches every direction).

Prints one row a group of runs: how many left the first saddle and when (median; never),
what theory predicts from the projection after ten steps, how many passed every saddle,
and log-rank tests against the same runs without noise (p-values corrected by Holm over
the table). Writes saddle_escape.json, saddle_escape.csv, survival_<optimiser>.png and
predicted.png to --workdir.
"""

import csv
import io
import itertools
import math
from pathlib import Path

import common
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
OPTIMIZERS = ("gradient_descent", "heavy_ball", "adam", "perturbed")
PRECISIONS = ("float32", "float64")
FORMS = ("aligned", "rotated")
QUIET = "none"
EVENTS = {"escape": "escaped", "arrival": "arrived"}
SETTLE = 10  # steps after which the projection that predicts the escape is read
flags.DEFINE_list(
    "functions",
    ["octopus", "quadratic_quartic", "identical_units"],
    "Test functions; `all` for every one.",
)
flags.DEFINE_list(
    "optimizers",
    list(OPTIMIZERS[:3]),
    "Optimisers: " + ", ".join(OPTIMIZERS) + " (Jin et al. 2017).",
)
flags.DEFINE_string(
    "noise",
    "reduction_order:granularity=element;reduction_order:granularity=shared;"
    "gradient_gaussian:scale=1e-3",
    "Noises in the syntax of train.py, separated by `;`. Runs without noise are always "
    "made: they are what the others are compared with.",
)
flags.DEFINE_integer("keys", 16, "Runs a group; a key fixes start, rotation and noise.")
flags.DEFINE_integer("steps", 2600, "Steps a run may take.")
flags.DEFINE_list("precision", list(PRECISIONS), "float32, float64 or both.")
flags.DEFINE_list("form", list(FORMS), "aligned, rotated or both.")
flags.DEFINE_float("adam_learning_rate", 0.02, "Adam's step; the others have 1/(2 L).")
flags.DEFINE_string("workdir", "results/saddle_escape", "Where to write.")


def main(argv: list[str]) -> None:
    """Checks, runs, tests, writes."""
    del argv
    functions, noises = check_flags()
    common.use_compilation_cache()
    groups = []
    for function in functions:
        for precision in FLAGS.precision:
            for text, spec in noises.items():
                print(f"{function.name}, {precision}, {text}", flush=True)
                groups += run(function, precision, text, spec)
    compare(groups)
    publish(groups, Path(FLAGS.workdir))


def check_flags() -> tuple[list, dict]:
    """Functions and noise specs, refused before anything is run."""
    from prednet_jax import noise, saddles

    names = list(saddles.CATALOGUE)
    wanted = names if FLAGS.functions == ["all"] else FLAGS.functions
    for flag, values, accepted in (
        ("functions", wanted, [*names, "all"]),
        ("optimizers", FLAGS.optimizers, OPTIMIZERS),
        ("precision", FLAGS.precision, PRECISIONS),
        ("form", FLAGS.form, FORMS),
    ):
        for value in values or [""]:
            if value not in accepted:
                raise ValueError(
                    f"--{flag}={value}: expected one of {', '.join(accepted)}"
                )
        if len(set(values)) < len(values):
            raise ValueError(f"--{flag}={','.join(values)}: expected each value once")
    if FLAGS.keys < 1:
        raise ValueError(f"--keys={FLAGS.keys}: expected at least 1")
    if FLAGS.steps <= SETTLE:
        raise ValueError(f"--steps={FLAGS.steps}: expected more than {SETTLE}")
    if not 0 < FLAGS.adam_learning_rate < math.inf:
        raise ValueError(
            f"--adam_learning_rate={FLAGS.adam_learning_rate}: expected a positive "
            "number"
        )
    noises = {QUIET: noise.Identity()}
    for text in filter(None, (part.strip() for part in FLAGS.noise.split(";"))):
        noises[text] = spec = noise.parse(text)
        if noise.at(spec, "weights") is not None:
            raise ValueError(f"--noise={text}: acts on weights; runs here have none")
    return [saddles.CATALOGUE[name]() for name in wanted], noises


def rules(function) -> list:
    """The chosen optimisers, with the learning rates for this function."""
    from prednet_jax import saddles

    rate = 1 / (2 * function.smoothness)
    known = {
        "gradient_descent": saddles.gradient_descent(rate),
        "heavy_ball": saddles.heavy_ball(rate),
        "adam": saddles.adam(FLAGS.adam_learning_rate),
        "perturbed": saddles.perturbed_gradient_descent(
            rate, radius=1e-3, threshold=1e-2, wait=50
        ),
    }
    return [known[name] for name in FLAGS.optimizers]


def run(function, precision: str, text: str, spec) -> list[dict]:
    """Every optimiser, form and key of one program, as one dictionary a group."""
    import jax

    from prednet_jax import noise, saddles

    noisy = noise.inject(saddles.rotated_gradient(function), spec)
    on_gradient = noise.at(spec, "gradient")

    def gradient(key, x, rotation):
        inner, outer = jax.random.split(key)
        found = noisy(inner, x, rotation)
        if on_gradient is None:
            return found
        return noise.perturb_tree(on_gradient, outer, found)

    chosen = rules(function)
    with jax.enable_x64(precision == "float64"):
        runs = saddles.escape_runs(
            gradient,
            function,
            chosen,
            forms=tuple(FLAGS.form),
            seeds=FLAGS.keys,
            steps=FLAGS.steps,
            dtype=precision,
            settle=SETTLE,
            fresh=getattr(spec, "schedule", "call") == "call",
        )
    groups = []
    for (i, name), (j, form) in itertools.product(
        enumerate(FLAGS.optimizers), enumerate(FLAGS.form)
    ):
        group = {
            "function": function.name,
            "optimizer": name,
            "form": form,
            "precision": precision,
            "noise": text,
            "escape_steps": runs.steps[i, j].tolist(),
            "escaped": runs.escaped[i, j].tolist(),
            "arrival_steps": runs.arrival[i, j].tolist(),
            "arrived": runs.arrived[i, j].tolist(),
        }
        group["predicted_steps"] = [
            predict(function, group, chosen[i], *pair)
            for pair in runs.early[i, j].astype(float)
        ]
        groups.append(group)
    return groups


def predict(function, group: dict, rule, before: float, now: float) -> float | None:
    """Escape time that theory expects; inf: never; None: theory cannot say."""
    from prednet_jax.saddles import theory

    if not function.strict or group["optimizer"] == "perturbed":
        return None
    if group["form"] == "aligned":
        # The start is exact here, so a projection within the rounding of its own
        # measurement is none. Noise may still make one later; without noise nothing.
        eps = np.finfo(group["precision"]).eps
        if now <= 8 * eps * np.linalg.norm(function.saddle):
            return math.inf if group["noise"] == QUIET else None
    if group["optimizer"] == "adam":
        # Of a fresh Adam the size of the projection does not matter.
        return theory.adam_fresh_escape_time(
            function.radius, learning_rate=rule.learning_rate
        )
    return SETTLE + theory.remaining_time(
        before,
        now,
        function.radius,
        learning_rate=rule.learning_rate,
        curvature=function.curvature,
        momentum=rule.momentum,
    )


def compare(groups: list[dict]) -> None:
    """Adds to each group its summary and the tests against its quiet twin."""
    from statsmodels.stats.multitest import multipletests

    from prednet_jax import statistics

    def case(group: dict) -> tuple:
        return tuple(group[k] for k in ("function", "optimizer", "form", "precision"))

    twins = {case(group): group for group in groups if group["noise"] == QUIET}
    tested = []
    for group in groups:
        expected = [p for p in group["predicted_steps"] if p is not None]
        group["predicted_median"] = float(np.median(expected)) if expected else None
        twin = twins[case(group)]
        for event, happened in EVENTS.items():
            group[f"{event}_median"] = median(group[f"{event}_steps"], group[happened])
            group[f"{event}_p"] = group[f"{event}_p_holm"] = None
            if group is twin:
                continue
            group[f"{event}_p"] = statistics.logrank(
                group[f"{event}_steps"],
                twin[f"{event}_steps"],
                first_escaped=group[happened],
                second_escaped=twin[happened],
            ).p_value
            tested.append((group, event))
    if tested:
        raw = [group[f"{event}_p"] for group, event in tested]
        corrected = multipletests(raw, method="holm")[1]
        for (group, event), p in zip(tested, corrected, strict=True):
            group[f"{event}_p_holm"] = float(p)
    for group in groups:
        group["reading"] = reading(group, twins[case(group)])


def median(steps: list[int], happened: list[bool]) -> float:
    """Median time with the runs that did not get there counted as never."""
    return float(np.median(np.where(happened, steps, math.inf)))


def reading(group: dict, twin: dict) -> str:
    """What the row says, in words."""
    if group is twin:
        if not any(group["escaped"]):
            return "determinism never leaves"
        stalled = len(group["arrived"]) - sum(group["arrived"])
        return "rounding alone leaves" + (
            f", {stalled} stop on the way" if stalled else ""
        )
    found = []
    for event, verb in (("escape", "leaves"), ("arrival", "passes all")):
        if group[f"{event}_p_holm"] >= 0.05:
            continue
        ours, theirs = group[f"{event}_median"], twin[f"{event}_median"]
        if math.isinf(theirs):
            found.append(f"{verb} where determinism does not")
        else:
            found.append(f"{verb} {'sooner' if ours < theirs else 'later'}")
    return ", ".join(found) if found else "randomness adds nothing"


COLUMNS = (
    ("function", 24),
    ("optimizer", 16),
    ("form", 8),
    ("precision", 9),
    ("noise", 36),
    ("left", 7),
    ("median", 7),
    ("theory", 7),
    ("passed", 7),
    ("median", 7),
    ("p left", 8),
    ("p passed", 8),
    ("reading", 0),
)


def publish(groups: list[dict], folder: Path) -> None:
    """Prints the table and writes the files."""
    from prednet_jax import records

    print()
    print("  ".join(f"{name:<{width}}" for name, width in COLUMNS))
    for group in groups:
        values = cells(group)
        print(
            "  ".join(
                f"{value:<{width}}"
                for value, (_, width) in zip(values, COLUMNS, strict=True)
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    records.write_json(
        folder / "saddle_escape.json",
        {
            "flags": {
                flag.name: flag.value
                for flag in FLAGS.get_key_flags_for_module("__main__")
            },
            "versions": records.versions(),
            "git_commit": records.git_commit(Path(__file__).parent),
            "groups": groups,
        },
    )
    records.write_bytes(folder / "saddle_escape.csv", table(groups).encode())
    for name in FLAGS.optimizers:
        chosen = [g for g in groups if g["optimizer"] == name]
        records.write_bytes(folder / f"survival_{name}.png", survival(chosen))
    records.write_bytes(folder / "predicted.png", predicted(groups))
    print(f"\nfigures and tables: {folder}")


def cells(group: dict) -> list[str]:
    """The printed row."""

    def steps(value: float | None) -> str:
        if value is None:
            return "-"
        return "never" if math.isinf(value) else f"{value:.0f}"

    def p(value: float | None) -> str:
        return "-" if value is None else f"{value:.2g}"

    return [
        *(group[k] for k in ("function", "optimizer", "form", "precision", "noise")),
        f"{sum(group['escaped'])}/{len(group['escaped'])}",
        steps(group["escape_median"]),
        steps(group["predicted_median"]),
        f"{sum(group['arrived'])}/{len(group['arrived'])}",
        steps(group["arrival_median"]),
        p(group["escape_p_holm"]),
        p(group["arrival_p_holm"]),
        group["reading"],
    ]


def table(groups: list[dict]) -> str:
    """The rows as CSV; a time that never came, or is not known, is an empty field."""
    text = io.StringIO()
    names = [k for k, v in groups[0].items() if not isinstance(v, list)]
    counts = [*EVENTS.values(), "runs"]
    writer = csv.DictWriter(text, [*names, *counts], lineterminator="\n")
    writer.writeheader()
    for group in groups:
        row = {k: "" if group[k] == math.inf else group[k] for k in names}
        row |= {happened: sum(group[happened]) for happened in EVENTS.values()}
        writer.writerow(row | {"runs": len(group["escaped"])})
    return text.getvalue()


def survival(groups: list[dict]) -> bytes:
    """Fraction not past every saddle, against steps: a row a function."""
    from matplotlib.figure import Figure

    from prednet_jax import statistics

    functions = list(dict.fromkeys(g["function"] for g in groups))
    cases = list(itertools.product(FLAGS.form, FLAGS.precision))
    size = (3.2 * len(cases) + 0.6, 2.3 * len(functions) + 1.1)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(functions), len(cases), squeeze=False, sharey=True)
    for (row, function), (column, (form, precision)) in itertools.product(
        enumerate(functions), enumerate(cases)
    ):
        ax = axes[row, column]
        ax.set_title(f"{function}, {form}, {precision}", fontsize=8)
        chosen = [
            g
            for g in groups
            if (g["function"], g["form"], g["precision"]) == (function, form, precision)
        ]
        # Later lines are thinner, so that equal curves stay visible.
        for rank, group in enumerate(chosen):
            times, left = statistics.survival_curve(
                group["arrival_steps"], group["arrived"]
            )
            ax.step(
                np.concatenate([[1], times, [FLAGS.steps]]),
                np.concatenate([[1], left, left[-1:]]),
                where="post",
                label=group["noise"],
                linewidth=3.5 * 0.65**rank,
            )
        ax.set(xscale="log", xlim=(SETTLE, FLAGS.steps), ylim=(-0.05, 1.05))
        ax.tick_params(labelsize=7)
    for ax in axes[-1]:
        ax.set_xlabel("steps", fontsize=8)
    for ax in axes[:, 0]:
        ax.set_ylabel("not past all saddles", fontsize=8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8)
    return png(figure)


def predicted(groups: list[dict]) -> bytes:
    """Measured against predicted escape times, a point a run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 5), layout="constrained")
    ax = figure.subplots()
    for name, marker in zip(FLAGS.optimizers, "o^sv", strict=False):
        points = [
            (expected, steps)
            for g in groups
            if g["optimizer"] == name
            for expected, steps, left in zip(
                g["predicted_steps"], g["escape_steps"], g["escaped"], strict=True
            )
            if left and expected is not None and math.isfinite(expected)
        ]
        if points:
            ax.scatter(
                *zip(*points, strict=True), s=12, alpha=0.4, marker=marker, label=name
            )
    low, high = 1, FLAGS.steps
    ax.plot([low, high], [low, high], color="grey", linewidth=0.8)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="predicted steps to leave the first saddle",
        ylabel="measured",
    )
    if ax.collections:
        ax.legend(fontsize=8)
    return png(figure)


def png(figure) -> bytes:
    """A figure's file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


if __name__ == "__main__":
    common.run(main)
