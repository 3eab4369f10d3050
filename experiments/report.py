"""Writes the report of a comparison anew: figures, report.html, and the verdict table.

    python experiments/report.py
    python experiments/report.py --directory=results/published
    python experiments/report.py --directory=runs/my_comparison

Reads verdict.json and the runs next to it; trains nothing. Without --directory it takes
results/compare, or results/published if nothing was compared yet.
"""

from pathlib import Path

import _cli
from absl import flags

from prednet_jax import report
from prednet_jax.errors import UserError

FLAGS = flags.FLAGS
RESULTS = Path(__file__).resolve().parent.parent / "results"
flags.DEFINE_string(
    "directory",
    None,
    "What compare_backends.py wrote. Default: results/compare, else results/published.",
)


def main() -> None:
    """Finds the records, writes the report, prints the table and the page's path."""
    chosen = FLAGS.directory
    usual = RESULTS / "compare", RESULTS / "published"
    places = usual if chosen is None else (Path(chosen),)
    directory = next((p for p in places if (p / report.VERDICT).is_file()), None)
    if directory is None:
        raise UserError(
            f"--directory={chosen or 'results/compare'}: no verdict.json there; "
            "expected what `make compare` writes (experiments/compare_backends.py)"
        )
    path = report.build(directory)
    print(report.text_table(report.read_verdict(directory / report.VERDICT)))
    print(f"\n{path}")


if __name__ == "__main__":
    _cli.run(main)
