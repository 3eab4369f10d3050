"""Simulates studies with a known truth and counts the verdicts of the rule.

    python experiments/verdict_rates.py

writes, to --workdir, verdict_rates.csv (how often the decision rule says `supported`,
`refuted` and `inconclusive`), coverage.csv (how often the intervals hold the true mean,
and how often equivalence is claimed wrongly), both as tables in Markdown, and
manifest.json. Deterministic: the same flags and versions give the same files.
"""

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("studies", 2000, "Simulated studies per row, at least 1.")
flags.DEFINE_integer("seed", 0, "Root seed of the simulations, 0 or more.")
flags.DEFINE_string("workdir", "results/statistics", "Where to write.")


def main(argv: list[str]) -> None:
    """Simulates and writes."""
    from prednet_jax import errors, records
    from prednet_jax.statistics import coverage, rates

    try:
        if argv[1:]:
            raise errors.UserError(f"{argv[1]}: expected flags only")
        errors.whole("--studies", FLAGS.studies, 1)
        errors.whole("--seed", FLAGS.seed, 0)
    except errors.UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    folder = Path(FLAGS.workdir)
    commit = records.git_commit(Path(__file__).parent)
    files = {}
    for name, module in (("verdict_rates", rates), ("coverage", coverage)):
        found = module.simulate(FLAGS.studies, seed=FLAGS.seed)
        files[f"{name}.csv"] = _csv(module.COLUMNS, found)
        files[f"{name}.md"] = module.table(found)
        print(files[f"{name}.md"])
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        records.write_bytes(folder / file, text.encode())
    manifest = {
        "command": "python experiments/verdict_rates.py",
        "flags": {"studies": FLAGS.studies, "seed": FLAGS.seed},
        "git_commit": commit,
        "versions": records.versions(),
    }
    records.write_json(folder / "manifest.json", manifest)


def _csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


if __name__ == "__main__":
    app.run(main)
