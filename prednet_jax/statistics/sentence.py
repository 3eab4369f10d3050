"""A verdict in plain language, with its limits."""

from typing import TYPE_CHECKING

from prednet_jax.statistics.evidence import Question

if TYPE_CHECKING:
    from prednet_jax.statistics.verdict import Verdict


def sentence(verdict: "Verdict") -> str:
    """The answer, its figures, what it lacked and what it does not say."""
    figures = "; ".join(_figures(question) for question in verdict.questions)
    model = verdict.model
    if verdict.verdict == "supported":
        parts = [f"Supported: noise makes {model} train better ({figures})."]
    elif verdict.verdict == "refuted":
        parts = [
            f"Refuted: noise changes the loss of {model} by less than the margin, in a "
            f"study that would have seen more ({figures}; power "
            f"{verdict.achieved_power:.2f}; the share of seeds that gain more than the "
            f"margin, less that which loses as much, is below "
            f"{verdict.gain_excess_upper:.2f})."
        ]
    else:
        parts = [f"Inconclusive for {model} ({figures})."]
        if verdict.equivalent_at_this_horizon:
            parts.append(
                "The arms are equivalent at this horizon, which ends before the "
                "trajectories separate; it says nothing about a longer one."
            )
        parts += [
            f"Not refuted because {', '.join(verdict.unmet_for_refuted)}.",
            f"Not supported because {', '.join(verdict.unmet_for_supported)}.",
            _seeds(verdict),
        ]
    if verdict.emulated_only:
        parts.append("This is about emulated noise only: no GPU was used.")
    if verdict.more_noise_helps:
        scales = ", ".join(f"{scale:g}" for scale in verdict.more_noise_helps)
        parts.append(
            f"Apart from this, more noise helps: Gaussian noise of {scales} times the "
            "gradient lowers the loss, which does not support the hypothesis."
        )
    return " ".join(parts)


def _figures(question: Question) -> str:
    r, check = question.result, question.manipulation
    distance = "not measured"
    if check is not None:
        distance = f"{check.distance_over_travelled:.2g}"
    return (
        f"{question.name}: {r.mean_difference:+.3g} [{r.ci_low:.3g}, {r.ci_high:.3g}], "
        f"largest {r.max_abs_difference:.3g}, margin {r.margin:.3g}, sign-flip p "
        f"{r.p_holm:.3g} (Holm over {r.p_holm_family}), equivalence p {r.tost_p:.3g}, "
        f"n {r.n}, distance / travelled {distance}"
    )


def _seeds(verdict: "Verdict") -> str:
    if verdict.seeds_needed is None:
        return "One seed says nothing about how many are needed."
    if verdict.seeds_still_needed:
        return (
            f"With this spread at least {verdict.seeds_needed} seeds are needed, "
            f"{verdict.seeds_still_needed} more than were run."
        )
    return "The number of seeds is enough; the evidence above is not."
