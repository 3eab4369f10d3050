"""Measures how much each reduction varies from run to run on this device.

    python experiments/calibrate_noise.py
    python experiments/calibrate_noise.py --shapes=prednet --repeats=20 --processes=5

results/published/calibration_cpu.json has the figures of a CPU, with their command.

Each reduction of a training step is executed repeatedly (per call: atomics,
scheduling), compiled repeatedly, and compiled in other processes (per run: autotuning
may choose another kernel). V_c is the fraction of elements that differ from the first
output, V_ermv their mean relative difference. The table also has the variation that the
noise `reduction_order` emulates, and says where each of its profiles and the device
disagree on which reductions vary. On a CPU nothing varies, so every profile has more
variation than the device.

Writes calibration.json and calibration.png to --workdir.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import _cli
import _flags
import jax
import numpy as np
from absl import flags
from matplotlib.figure import Figure

from prednet_jax import device, process, provenance, records
from prednet_jax.errors import UserError
from prednet_jax.noise import ReductionOrder
from prednet_jax.report.theme import plain_png
from prednet_jax.studies import calibration

FLAGS = flags.FLAGS
flags.DEFINE_enum("shapes", "tiny", ["tiny", "prednet"], "Sizes of the reductions.")
flags.DEFINE_list("primitives", None, "Some of the reductions; default: all.")
flags.DEFINE_integer("repeats", 10, "Executions of each program, and keys of noise.")
flags.DEFINE_integer("compilations", 2, "Compilations of each program in this process.")
flags.DEFINE_integer("processes", 1, "Further processes that compile each program.")
flags.DEFINE_list(
    "profile",
    ["uniform_worst_case", "xla_gpu", "chainer_cudnn"],
    "Profiles of reduction_order to compare with.",
)
flags.DEFINE_enum(
    "granularity",
    "tile",
    ["tile", "element", "shared"],
    "Granularity of the emulated orders.",
)
flags.DEFINE_integer("partials", 8, "Partial sums of each emulated reduction, from 3.")
flags.DEFINE_bool("figure", True, "Whether to draw calibration.png.")
flags.DEFINE_string("workdir", "results/calibration", "Where to write.")
flags.DEFINE_string("outputs", None, "Internal: write first outputs here and end.")


def main(argv: list[str]) -> None:
    """Checks the flags, measures every reduction, writes table, JSON and figure."""
    del argv
    process.prepare()
    for name, low in (("repeats", 2), ("compilations", 1), ("processes", 0)):
        _flags.check_numbers(low, name)
    # Without the cache on disk, so that every program is really compiled.
    jax.config.update("jax_enable_compilation_cache", False)
    specs = orders()
    process.set_precision("float32")
    reductions = chosen(calibration.reductions(FLAGS.shapes))
    if FLAGS.outputs:
        write_outputs(reductions, FLAGS.outputs)
        return
    others = outputs_of_processes(FLAGS.processes)
    here = device.description()
    print(f"{here['kind']} ({here['platform']}), shapes {FLAGS.shapes}")
    print(HEADER)
    rows = []
    for reduction in reductions:
        theirs = [found[reduction.name] for found in others]
        rows.append(measure(reduction, specs, theirs))
        print(line(rows[-1]), flush=True)
    varying = [row["primitive"] for row in rows if varies(row)]
    print(f"vary from run to run: {', '.join(varying) or 'none'}")
    for profile in specs:
        print(judgement(profile, rows))
    workdir = Path(FLAGS.workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    result = {
        **_cli.provenance(),
        "device": here,
        "environment": provenance.environment(),
        "shapes": FLAGS.shapes,
        "partials": FLAGS.partials,
        "granularity": FLAGS.granularity,
        "varying": varying,
        "primitives": rows,
    }
    records.write_json(workdir / "calibration.json", result)
    if FLAGS.figure:
        draw(rows, workdir / "calibration.png")
    print(f"written: {workdir / 'calibration.json'}")


def chosen(reductions) -> list:
    """The reductions named by --primitives; the order is that of the table."""
    if FLAGS.primitives is None:
        return list(reductions)
    names = [reduction.name for reduction in reductions]
    unknown = [name for name in FLAGS.primitives if name not in names]
    if unknown or not FLAGS.primitives:
        raise UserError(
            f"--primitives={','.join(FLAGS.primitives)}: expected some of "
            f"{', '.join(names)}"
        )
    return [one for one in reductions if one.name in FLAGS.primitives]


def orders() -> dict:
    """The reduction order of each profile in --profile."""
    if not FLAGS.profile:
        raise UserError("--profile=: expected at least one profile")
    return {
        profile: ReductionOrder(
            partials=FLAGS.partials, granularity=FLAGS.granularity, profile=profile
        )
        for profile in FLAGS.profile
    }


def measure(reduction, specs: dict, others: list) -> dict:
    """The measured and the emulated variation of one reduction."""
    calls = calibration.repeated_calls(reduction, FLAGS.repeats)
    compilations = calibration.repeated_compilations(reduction, FLAGS.compilations)
    row = {
        "primitive": reduction.name,
        "call": calibration.variation(calls)._asdict(),
        "compilation": calibration.variation([calls[0], *compilations])._asdict(),
        "process": None,
        "emulated": {},
    }
    if others:
        row["process"] = calibration.variation([calls[0], *others])._asdict()
    known: dict = {}
    for profile, spec in specs.items():
        paths = calibration.perturbed_paths(reduction, spec)
        if paths and paths not in known:
            outputs = calibration.emulated(reduction, spec, FLAGS.repeats)
            known[paths] = calibration.variation(outputs)._asdict()
        row["emulated"][profile] = known.get(paths)
    return row


def varies(row: dict) -> bool:
    """Whether the reduction varied between calls, compilations or processes."""
    return any(row[k] and row[k]["v_c"] > 0 for k in ("call", "compilation", "process"))


HEADER = (
    f"{'primitive':<23} {'call V_c':>9} {'compile':>9} {'process':>9} {'V_ermv':>9}"
    f"   {'emulated V_c':>12} {'V_ermv':>9}"
)


def line(row: dict) -> str:
    """One line of the table; it shows the profile with the largest emulated V_c."""
    found = [row[k] for k in ("call", "compilation", "process")]
    shares = [f"{s['v_c']:9.3g}" if s else f"{'-':>9}" for s in found]
    relative = max(s["v_ermv"] for s in found if s)
    emulated = [s for s in row["emulated"].values() if s]
    widest = max(emulated, key=lambda s: s["v_c"], default=None)
    tail = (
        f"{widest['v_c']:>12.3g} {widest['v_ermv']:>9.2g}"
        if widest
        else f"{'-':>12} {'-':>9}"
    )
    return f"{row['primitive']:<23} {' '.join(shares)} {relative:>9.2g}   {tail}"


def judgement(profile: str, rows: list[dict]) -> str:
    """In which reductions a profile and the device disagree, in words."""
    perturbed = {r["primitive"] for r in rows if r["emulated"][profile]}
    measured = {r["primitive"] for r in rows if varies(r)}
    order = [r["primitive"] for r in rows]
    only_noise = [name for name in order if name in perturbed - measured]
    only_device = [name for name in order if name in measured - perturbed]
    return (
        f"{profile}: perturbed, but constant here: {', '.join(only_noise) or 'none'}; "
        f"not perturbed, but varies here: {', '.join(only_device) or 'none'}"
    )


def write_outputs(reductions, path: str) -> None:
    """The first output of every reduction, for a parent process."""
    np.savez(path, **{p.name: calibration.repeated_calls(p, 1)[0] for p in reductions})


def outputs_of_processes(count: int) -> list:
    """First outputs of all reductions in `count` processes, one after another.

    Call it before this process starts its backend, which may use the whole device.

    Raises:
        UserError: a process failed; its last line on stderr is quoted.
    """
    found = []
    names = FLAGS.primitives
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            path = os.path.join(folder, f"{i}.npz")
            command = [
                sys.executable,
                str(Path(__file__).resolve()),
                f"--shapes={FLAGS.shapes}",
                *([f"--primitives={','.join(names)}"] if names else []),
                f"--outputs={path}",
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise UserError(f"process {i + 1} of --processes={count}: {last}")
            with np.load(path) as arrays:
                found.append({name: arrays[name] for name in arrays.files})
    return found


def draw(rows: list[dict], path: Path) -> None:
    """Measured and emulated V_c of each primitive."""
    profiles = list(rows[0]["emulated"])
    series = {
        "measured, per call": [r["call"]["v_c"] for r in rows],
        "measured, per compilation": [r["compilation"]["v_c"] for r in rows],
        **(
            {"measured, per process": [r["process"]["v_c"] for r in rows]}
            if rows[0]["process"]
            else {}
        ),
        **{
            f"emulated, {p}": [(r["emulated"][p] or {"v_c": 0.0})["v_c"] for r in rows]
            for p in profiles
        },
    }
    figure = Figure(figsize=(8, 5), layout="tight")
    axis = figure.subplots()
    height = 0.8 / len(series)
    for i, (name, values) in enumerate(series.items()):
        places = [j + (i + 0.5) * height - 0.4 for j in range(len(rows))]
        axis.barh(places, values, height, label=name)
    axis.set_yticks(range(len(rows)), [r["primitive"] for r in rows])
    axis.invert_yaxis()
    axis.set_xlabel("$V_c$: fraction of elements that differ from the first output")
    axis.set_xlim(0, 1)
    axis.legend(fontsize="small")
    records.write_bytes(path, plain_png(figure))


if __name__ == "__main__":
    _cli.run(main)
