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

Writes calibration.json to --workdir.
"""

from pathlib import Path

import _cli
import _flags
import jax
from absl import flags

from prednet_jax import device, process, provenance, records
from prednet_jax.errors import UserError
from prednet_jax.noise import ReductionOrder
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
flags.DEFINE_string("granularity", "tile", "Granularity of the emulated orders.")
flags.DEFINE_integer("partials", 8, "Partial sums of each emulated reduction, from 3.")
flags.DEFINE_string("workdir", "results/calibration", "Where to write.")


def main(argv: list[str]) -> None:
    """Checks the flags, measures every reduction, writes table and JSON."""
    del argv
    process.prepare()
    for name, low in (("repeats", 2), ("compilations", 1), ("processes", 0)):
        _flags.check_numbers(low, name)
    if not FLAGS.profile:
        raise UserError("--profile=: expected at least one profile")
    # Without the cache on disk, so that every program is really compiled.
    jax.config.update("jax_enable_compilation_cache", False)
    order = {"partials": FLAGS.partials, "granularity": FLAGS.granularity}
    specs = {name: ReductionOrder(profile=name, **order) for name in FLAGS.profile}
    process.set_precision("float32")
    reductions = {one.name: one for one in calibration.reductions(FLAGS.shapes)}
    chosen = list(reductions) if FLAGS.primitives is None else FLAGS.primitives
    if not chosen or not set(chosen) <= set(reductions):
        raise UserError(
            f"--primitives={','.join(chosen)}: expected some of {', '.join(reductions)}"
        )
    chosen = [name for name in reductions if name in chosen]
    others = calibration.in_other_processes(FLAGS.processes, FLAGS.shapes, chosen)
    here = device.description()
    print(f"{here['kind']} ({here['platform']}), shapes {FLAGS.shapes}")
    print(HEADER)
    rows = []
    for number, name in enumerate(chosen):
        row = calibration.measure(
            reductions[name],
            specs,
            [outputs[number] for outputs in others],
            repeats=FLAGS.repeats,
            compilations=FLAGS.compilations,
        )
        rows.append(row)
        print(line(row), flush=True)
    varying = [row["primitive"] for row in rows if calibration.varies(row)]
    print(f"vary from run to run: {', '.join(varying) or 'none'}")
    for profile in specs:
        print(calibration.disagreement(profile, rows))
    path = Path(FLAGS.workdir) / "calibration.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        **_cli.provenance(),
        "device": here,
        "environment": provenance.environment(),
        "shapes": FLAGS.shapes,
        **order,
        "varying": varying,
        "primitives": rows,
    }
    records.write_json(path, result)
    print(f"written: {path}")


HEADER = (
    f"{'primitive':<23} {'call V_c':>9} {'compile':>9} {'process':>9} {'V_ermv':>9}"
    f"   {'emulated V_c':>12} {'V_ermv':>9}"
)


def line(row: dict) -> str:
    """One line of the table; it shows the profile with the largest emulated V_c."""
    measured = [row[k] for k in ("call", "compilation", "process")]
    shares = [f"{s['v_c']:9.3g}" if s else f"{'-':>9}" for s in measured]
    relative = max(s["v_ermv"] for s in measured if s)
    emulated = [s for s in row["emulated"].values() if s]
    tail = f"{'-':>12} {'-':>9}"
    if emulated:
        widest = max(emulated, key=lambda s: s["v_c"])
        tail = f"{widest['v_c']:>12.3g} {widest['v_ermv']:>9.2g}"
    return f"{row['primitive']:<23} {' '.join(shares)} {relative:>9.2g}   {tail}"


if __name__ == "__main__":
    _cli.run(main)
