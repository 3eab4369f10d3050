"""Simulates studies with a known truth and counts the answers of the rule.

    python experiments/simulated_studies.py

writes to --workdir simulated_studies.csv (how often each answer is given, and how often
the intervals hold the truth) and manifest.json. The same flags and versions give the
same file; it takes some minutes.
"""

from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import records
from prednet_jax.report import document_tables
from prednet_jax.statistics import simulated

FLAGS = flags.FLAGS
flags.DEFINE_integer("studies", 4000, "Simulated studies per row, at least 1.")
flags.DEFINE_integer("seed", 0, "Root seed of the simulations, 0 or more.")
flags.DEFINE_string("workdir", "results/statistics", "Where to write.")


def main(argv: list[str]) -> None:
    """Simulates and writes."""
    del argv
    _flags.check_numbers(1, "studies")
    _flags.check_numbers(0, "seed")
    rows = simulated.simulate(FLAGS.studies, seed=FLAGS.seed)
    folder = Path(FLAGS.workdir)
    records.write_csv(folder / "simulated_studies.csv", rows)
    records.write_json(folder / "manifest.json", _cli.provenance())
    print(document_tables.simulated_answers(rows))
    print(document_tables.simulated_intervals(rows))


if __name__ == "__main__":
    _cli.run(main)
