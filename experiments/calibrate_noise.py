"""Measures how much each reduction varies from run to run on this device.

    python experiments/calibrate_noise.py
    python experiments/calibrate_noise.py --shapes=prednet
    python experiments/calibrate_noise.py --shapes=prednet --repeats=20 --processes=5

Each reduction of a training step is executed repeatedly (per call: atomics,
scheduling), compiled repeatedly, and compiled in other processes (per run: autotuning
may choose another kernel). V_c is the fraction of elements that differ from the first
output, V_ermv their mean relative difference. The table also shows the variation that
each profile of the noise `reduction_order` emulates. On a CPU nothing varies. Writes
calibration.json to --workdir.

Without flags it takes 15 seconds of one core.
"""

from pathlib import Path

import _cli
import jax
from absl import flags

from prednet_jax import process, records
from prednet_jax.report import tables
from prednet_jax.training import calibration

FLAGS = flags.FLAGS
flags.DEFINE_enum("shapes", "tiny", ["tiny", "prednet"], "Sizes of the reductions.")
flags.DEFINE_integer("repeats", 10, "Executions of each program, and keys of noise.", 2)
flags.DEFINE_integer("processes", 1, "Further processes that compile each program.", 0)
flags.DEFINE_string("workdir", "results/calibration", "Directory to write.")


def main() -> None:
    """Measures every reduction, writes table and JSON."""
    process.prepare()
    # Without the cache on disk, so that every program is really compiled.
    jax.config.update("jax_enable_compilation_cache", False)
    process.set_precision("float32")
    small = FLAGS.shapes == "tiny"
    others = calibration.in_other_processes(FLAGS.processes, small)
    here = process.description()
    print(f"{here['kind']} ({here['platform']}), shapes {FLAGS.shapes}")
    cells = [("V_c of", *calibration.DISTANCES, *calibration.PROFILES)]
    rows, varying = [], []
    reductions = calibration.reductions(small=small)
    for (name, reduction), *apart in zip(reductions.items(), *others, strict=True):
        row = calibration.measure(reduction, apart, repeats=FLAGS.repeats)
        rows.append({"primitive": name} | row)
        measured = [row[distance] for distance in calibration.DISTANCES]
        if any(of and of["v_c"] > 0 for of in measured):
            varying.append(name)
        shown = (*measured, *row["emulated"].values())
        cells.append((name, *(f"{of['v_c']:.3g}" if of else "-" for of in shown)))
    print(tables.columns(cells, right=range(1, 7)))
    print(f"vary from run to run: {', '.join(varying) or 'none'}")
    path = Path(FLAGS.workdir) / "calibration.json"
    result = {
        "device": here,
        "environment": records.environment(),
        "shapes": FLAGS.shapes,
        "varying": varying,
        "primitives": rows,
    }
    _cli.write(path, result)
    print(f"written: {path}")


if __name__ == "__main__":
    _cli.run(main)
