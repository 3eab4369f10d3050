"""Tables of part A of the study: starts on a symmetric saddle."""

from collections.abc import Mapping, Sequence
from typing import Any

from prednet_jax.report.documents import markdown
from prednet_jax.statistics import Check
from prednet_jax.studies import symmetric_findings
from prednet_jax.studies.symmetric_findings import Effect, summary


def saddle(found: Sequence[Effect]) -> str:
    """Part A: every arm at every delta of both programs.

    Args:
        found: the result of `symmetric_findings.effects`.
    """
    head = (
        "program",
        "delta",
        "arm",
        "separated at update",
        "loss of the last fifth",
        "over float32",
        "separates",
        "loss",
    )
    rows = [
        (
            effect.program,
            f"{effect.delta:g}",
            effect.arm,
            summary(effect.separated_at, "{:.0f}".format),
            summary(effect.losses),
            summary(effect.over_control, "{:.2f}".format),
            effect.separation,
            effect.loss,
        )
        for effect in found
    ]
    return markdown(head, rows)


def checks(found: Mapping[str, Check]) -> str:
    """Part A: its checks.

    Args:
        found: the result of `symmetric_findings.checks`.
    """
    rows = [
        (name, "passed" if check.passed else "**failed**", check.figure)
        for name, check in found.items()
    ]
    return markdown(("check", "outcome", "measured"), rows)


def theory(record: Mapping[str, Any], found: Sequence[Effect]) -> str:
    """Part A: the largest split at which noise matters, by theory and as measured.

    Args:
        record: theory.json.
        found: the result of `symmetric_findings.effects`.
    """
    rows = [
        (
            str(one["seed"]),
            f"{one['rate']:.4f}",
            f"{one['c_sigma']:.1e}",
            f"{one['useful']:.1e}",
            f"{one['initial']:.2f}",
            f"{one['orders']:.1f}",
        )
        for one in record["seeds"]
    ]
    text = markdown(
        (
            "seed",
            "growth per update, ln r",
            "c_sigma",
            "noise matters below",
            "asymmetry of random weights",
            "orders of magnitude between",
        ),
        rows,
    )
    largest = {
        program: symmetric_findings.largest_delta(found, program)
        for program in ("symmetric", "ordinary")
    }
    said = "; ".join(
        f"{program} program: {'none' if delta is None else f'{delta:g}'}"
        for program, delta in largest.items()
    )
    return f"{text}\n\nLargest delta at which tile order lowered the loss: {said}."
