"""Simulates studies with a known truth and counts the verdicts of the rule.

    python experiments/verdict_rates.py

writes to --workdir verdict_rates.csv (how often the decision rule says `supported`,
`refuted` and `inconclusive`), coverage.csv (how often the intervals hold the true mean,
and how often equivalence is claimed wrongly) and manifest.json. The same flags and
versions give the same files.
"""

from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import records
from prednet_jax.report import document_tables
from prednet_jax.statistics import coverage, rates

FLAGS = flags.FLAGS
flags.DEFINE_integer("studies", 2000, "Simulated studies per row, at least 1.")
flags.DEFINE_integer("seed", 0, "Root seed of the simulations, 0 or more.")
flags.DEFINE_string("workdir", "results/statistics", "Where to write.")


def main(argv: list[str]) -> None:
    """Simulates and writes."""
    del argv
    _flags.check_numbers(1, "studies")
    _flags.check_numbers(0, "seed")
    verdicts = rates.simulate(FLAGS.studies, seed=FLAGS.seed)
    print(document_tables.verdict_rates(verdicts))
    intervals = coverage.simulate(FLAGS.studies, seed=FLAGS.seed)
    print(document_tables.interval_coverage(intervals))
    folder = Path(FLAGS.workdir)
    records.write_csv(folder / "verdict_rates.csv", verdicts, rates.COLUMNS)
    records.write_csv(folder / "coverage.csv", intervals, coverage.COLUMNS)
    records.write_json(folder / "manifest.json", _cli.provenance())


if __name__ == "__main__":
    _cli.run(main)
