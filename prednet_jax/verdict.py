"""The claims of a comparison: the types that verdict.json consists of. Needs no JAX.

`statistics` makes them, `report` reads them; text appears only where they are printed.
"""

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from prednet_jax.errors import UserError


class Answer(StrEnum):
    """The answer of a claim, as verdict.json has it."""

    LOWERS = "noise lowers the loss"
    RAISES = "noise raises the loss"
    NO_EFFECT = "no effect within the margin"
    SAME_BITS = "same bits"
    YES = "yes"
    NO = "no"
    CANNOT_TELL = "cannot tell"


class Kind(StrEnum):
    """The subject of a claim, as in verdict.json; a remark may follow."""

    NOISE = "random order of sums changes the loss"
    GPU = "a GPU's own noise changes the loss"
    STALE = "stale targets raise the loss"
    FLOAT32 = "float32's own order changes the loss against all other orders"
    SADDLE = "an order of sums that differs between twins leaves an exact saddle"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A relative change of the loss, 0.02 is 2 %, with its 95 % interval.

    Attributes:
        estimate: the change.
        low: lower end of the interval, or None with too few seeds.
        high: upper end of the interval, or None.
        seeds: number of seeds, or None if it was not recorded.
    """

    estimate: float
    low: float | None = None
    high: float | None = None
    seeds: int | None = None

    def to_json(self) -> dict[str, float | None]:
        """Returns the three numbers of verdict.json."""
        return {"estimate": self.estimate, "low": self.low, "high": self.high}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Estimate":
        """Reads the numbers of verdict.json; `seeds` may be missing."""
        names = ("estimate", "low", "high", "seeds")
        return cls(*(record.get(name) for name in names))  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a comparison; numbers are relative changes of the loss.

    Attributes:
        kind: subject of the claim.
        remark: text that follows the subject in brackets, or an empty text.
        model: the network.
        answer: whether the claim holds. If a study is repeated, the answer rests on the
            seeds of the study and of the repetition.
        found: the effect in the runs at hand.
        published: the effect in the published study, or None if it has no such effect.
        predicted: ends of the range in which a repetition of this size should fall, or
            None if they are unknown.
        holds: whether the estimate lies in that range, or None if this is unknown.
        together: the effect over the seeds of the study and of the repetition, or None
            if nothing was repeated.
        distance: distance of the final weights of noisy runs from the control's, over
            the distance trained, or None if it was not measured.
    """

    kind: Kind
    model: str
    answer: Answer
    found: Estimate
    remark: str = ""
    published: Estimate | None = None
    predicted: tuple[float, float] | None = None
    holds: bool | None = None
    together: Estimate | None = None
    distance: float | None = None

    @property
    def text(self) -> str:
        """Returns the claim with its remark."""
        return f"{self.kind} ({self.remark})" if self.remark else self.kind.value

    def to_json(self) -> dict[str, Any]:
        """Returns the object for `claims` in verdict.json."""
        return {
            "claim": self.text,
            "model": self.model,
            "answer": self.answer.value,
            **self.found.to_json(),
            "published": self.published and self.published.to_json(),
            "predicted": self.predicted,
            "holds": self.holds,
        }

    def together_to_json(self) -> dict[str, Any] | None:
        """Returns the object for `together`, or None if nothing was repeated."""
        if self.together is None:
            return None
        about = {"claim": self.text, "model": self.model}
        return {**about, "seeds": self.together.seeds, **self.together.to_json()}


def claims_from_json(verdict: Mapping[str, Any]) -> list[Claim]:
    """Reads the claims of a verdict; a UserError names an invalid one."""
    together = {
        (row.get("claim"), row.get("model")): Estimate.from_json(row)
        for row in verdict.get("together") or ()
    }
    checks = verdict.get("manipulation") or {}
    claims = []
    for row in verdict.get("claims") or ():
        try:
            text, _, remark = row["claim"].partition(" (")
            kind, model = Kind(text), row["model"]
            check = (checks.get(model) or {}) if kind is Kind.NOISE else {}
            published, predicted = row.get("published"), row.get("predicted")
            claim = Claim(
                kind=kind,
                remark=remark.removesuffix(")"),
                model=model,
                answer=Answer(row["answer"]),
                found=Estimate.from_json(row),
                published=Estimate.from_json(published) if published else None,
                predicted=(predicted[0], predicted[1]) if predicted else None,
                holds=row.get("holds"),
                together=together.get((row["claim"], model)),
                distance=check.get("distance_over_travelled"),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"claims: {error} in {row}; expected the claims of verdict.json"
            ) from None
        claims.append(claim)
    return claims
