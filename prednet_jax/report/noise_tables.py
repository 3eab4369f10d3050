"""What the tables on `prednet_jax.noise` show, each a function of records."""

from collections.abc import Mapping, Sequence
from typing import Any

from prednet_jax.report.documents import markdown

# What a noise may cost on any network: of the clean step's time, and of its time to
# trace and compile. Set before it was measured.
WANTED = {
    "reduction_order:granularity=tile": (1.8, 3.0),
    "reduction_order:granularity=element": (2.5, 4.0),
    "ulp": (1.5, 4.0),
}
# Of the kernels of the suite `accuracy`, the one that is no mistake.
RIGHT = "another order"


def noise_cost(record: Mapping[str, Any]) -> str:
    """Time and compile time of noisy steps over the clean step's.

    Args:
        record: what `experiments/benchmark.py --suite=noise` prints.
    """
    head = ("noise", "time, of the clean step", "time to compile, of the clean step's")
    rows = [
        (f"`{row['noise']}`", f"{row['time_ratio']:.2f}", f"{row['compile_ratio']:.2f}")
        for row in record["rows"]
        if row["noise"] != "none"
    ]
    return markdown(head, rows)


def gradient_noise(by_network: Mapping[str, Mapping[str, Any]]) -> str:
    """Spread and shift of the gradient under each noise, smallest to largest stage.

    Args:
        by_network: what `experiments/gradient_noise.py` wrote, by name of network.
    """
    head = ["noise"]
    for network in by_network:
        head += [f"{network}, spread", "shift"]
    texts = dict.fromkeys(
        row["noise"] for record in by_network.values() for row in record["rows"]
    )
    rows = []
    for text in texts:
        cells = [f"`{text}`"]
        for record in by_network.values():
            mine = [row for row in record["rows"] if row["noise"] == text]
            cells += [
                _range([row[name] for row in mine]) for name in ("spread", "shift")
            ]
        rows.append(cells)
    return markdown(head, rows)


def foreign_cost(by_flags: Mapping[str, Mapping[str, Any]]) -> str:
    """Cost of noise on other networks beside what is wanted; bold where it is more.

    Args:
        by_flags: what `experiments/benchmark.py --suite=foreign` prints, by a name of
            the XLA flags.
    """
    head = ["network", "noise"]
    for what in ("time", "trace and compile"):
        head += [f"{what}, {name} flags" for name in by_flags] + ["wanted"]
    first, *_ = by_flags.values()
    rows = []
    for place, row in enumerate(first["rows"]):
        cells = [row["network"], f"`{row['noise']}`"]
        for field, most in zip(
            ("time_ratio", "compile_ratio"), WANTED[row["noise"]], strict=True
        ):
            for record in by_flags.values():
                ratio = record["rows"][place][field]
                text = f"{ratio:.2f}"
                cells.append(text if float(text) <= most else f"**{text}**")
            cells.append(f"{most:g}")
        rows.append(cells)
    return markdown(head, rows)


def tools_cost(*records: Mapping[str, Any]) -> str:
    """Cost of the tools as multiples of the plain step, processor time in brackets.

    Args:
        *records: what `experiments/benchmark.py --suite=tools` prints, with and without
            `--searches`.
    """

    def both(row: Mapping[str, Any], name: str) -> str:
        if row[name] is None:
            return "compiles again"
        return f"{row[name]:.1f} ({row[f'{name}_processor']:.1f})"

    head = (
        "network",
        "tool",
        "first call, of compiling and one run",
        "second call, of one run",
    )
    rows = [
        (row["network"], f"`{row['tool']}`", both(row, "first"), both(row, "again"))
        for record in records
        for row in record["rows"]
    ]
    return markdown(head, rows)


def accuracy(record: Mapping[str, Any]) -> str:
    """How often the tools are right, beside what is wanted.

    Args:
        record: what `experiments/benchmark.py --suite=accuracy` prints.
    """
    errors = [error for leaves in record["digits"].values() for error in leaves]
    rows = [
        (
            f"`digits` against float64: mean error of a leaf, {len(record['digits'])} "
            "programs",
            "0.5 digits",
            f"{min(errors):.2f} to {max(errors):.2f} digits",
        )
    ]
    for failure in sorted({row["failure"] for row in record["tolerance"]}):
        mine = [row for row in record["tolerance"] if row["failure"] == failure]
        excess = [row["excess"] for row in mine if row["excess"]]
        rows.append(
            (
                f"`tolerance(failure={failure:g})`: fraction of 10,000 fresh runs "
                f"outside, worst of {len(mine)} programs and noises",
                f"{failure:g}",
                f"{max(row['worst'] for row in mine):g}; the tolerance is "
                f"{min(excess):.1f} to {max(excess):.1f} times the furthest run",
            )
        )
    words = {True: "caught", False: "passes"}
    rows += [
        (f"`assert_close` on a kernel with {name}", words[name != RIGHT], words[found])
        for name, found in record["kernels"].items()
    ]
    for tool, what in (
        ("explain", "constructed differences named rightly"),
        ("localize", "planted lines found, and no other"),
    ):
        cases, wrong = record[tool]["cases"], len(record[tool]["wrong"])
        share = 0.95 if tool == "explain" else 1.0
        rows.append(
            (f"`{tool}`: {what}", f"{share:.0%}", f"{cases - wrong} of {cases}")
        )
    return markdown(("what", "wanted", "found"), rows)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.1e} to {max(values):.1e}"
