"""The verdict of a comparison: the types that verdict.json consists of. Needs no JAX.

`statistics` and `runs.comparison` make them, `report` reads them; text appears only
where they are printed.
Numbers that are not finite become null in the file, and NaN when it is read.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from prednet_jax import errors
from prednet_jax.errors import UserError

#: A JSON object with other fields than the types of this module have.
Record = Mapping[str, Any]
#: Losses by arm, seed and noise draw; None where a run diverged.
Arms = Mapping[str, Mapping[str, Sequence[float | None]]]
# Types of the settings in `design` that the report reads, where they are recorded.
_DESIGN: dict[str, Any] = {
    "seeds": tuple[int, ...],
    "networks": Mapping[str, Record],
    "updates": Record,
    "data": Record,
    "differs_from_study": Mapping[str, tuple[str, ...]],
    "given_up": tuple[str, ...],
}
#: Name of the arm that all others are compared with.
CONTROL = "float32"

#: Smallest distance between two runs, over the distance travelled, that counts as
#: separated. Runs of 200 updates reach 2e-5 to 1e-2, separated ones 0.2 to 0.5.
SEPARATED = 0.1


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

    estimate: float = math.nan
    low: float | None = None
    high: float | None = None
    seeds: int | None = None

    def to_json(self) -> dict[str, float | None]:
        """Returns the three numbers of verdict.json."""
        return {"estimate": self.estimate, "low": self.low, "high": self.high}


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
        } | ({} if self.distance is None else {"distance": self.distance})

    def together_to_json(self) -> Record | None:
        """Returns the object for `together`, or None if nothing was repeated."""
        if self.together is None:
            return None
        about = {"claim": self.text, "model": self.model}
        return {**about, "seeds": self.together.seeds, **self.together.to_json()}


class Manipulation(NamedTuple):
    """The evidence on whether noise changed the trajectories.

    `bits_differ` is whether the final weights of the two groups differ on every seed.
    The distance is between the final weights of both groups, divided by the distance of
    the control's final weights from its initial ones; median over the seeds.
    """

    bits_differ: bool | None = None
    distance_over_travelled: float = math.nan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Margin:
    """The largest negligible difference of a model's losses.

    Attributes:
        value: the margin in units of the loss.
        fraction: the margin over the control's mean loss.
        control_mean: the control's mean loss.
        n_control: number of the control's seeds.
        origin: the same in words.
    """

    value: float
    fraction: float = math.nan
    control_mean: float = math.nan
    n_control: int = 0
    origin: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exclusion:
    """A seed that a contrast leaves out; old files have the reason alone."""

    model: str = ""
    treatment: str = ""
    control: str = ""
    seed: int | None = None
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmRecord:
    """An arm of a comparison: its command, how long it took, its part in the verdict.

    A field that is None was not measured.
    """

    model: str
    name: str
    meaning: str = ""
    command: str = ""
    status: str = ""
    noise: str | None = None
    threads: int | None = None
    measured_parallelism: float | None = None
    seconds_per_update: float | None = None
    gpu: str | None = None
    role: str = ""
    scale: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrast:
    """A paired contrast over `n` seeds, in units of the metric (a loss).

    Attributes:
        ci_low, ci_high: ends of the interval, infinite if there are too few seeds.
        p_value: two-sided sign-flip p-value, in (0, 1].
        p_holm: p-value after Holm's correction over `p_holm_family`, or None before it.
        tost_p: p-value of the equivalence test at `margin`, in (0, 1].
        verdict: "lower loss", "higher loss", "equivalent" or "inconclusive".
        max_abs_difference: largest |difference| of a seed.
        confidence, alpha: levels of the interval, and of the tests behind `verdict`.
        bitwise_equal: number of seeds whose final weights are equal, or None.
        n_excluded: number of seeds that are left out, or None.
        role: role of the treatment's arm, or None.
        scale: `log` for a contrast of logarithms, else the arm's noise, or None.
    """

    n: int = 0
    mean_difference: float = math.nan
    ci_low: float = math.nan
    ci_high: float = math.nan
    p_value: float = math.nan
    p_holm: float | None = None
    tost_p: float = math.nan
    margin: float = math.nan
    verdict: str = ""
    max_abs_difference: float = math.nan
    treatment_mean: float = math.nan
    control_mean: float = math.nan
    confidence: float = 0.95
    alpha: float = 0.05
    p_method: str | None = None
    ci_method: str | None = None
    tost_method: str | None = None
    model: str | None = None
    treatment: str | None = None
    control: str | None = None
    metric: str | None = None
    p_holm_family: str | None = None
    bitwise_equal: int | None = None
    n_excluded: int | None = None
    role: str | None = None
    scale: float | str | None = None

    def judged(self, **changes: Any) -> "Contrast":
        """Returns the contrast with changed fields, and the verdict that follows.

        A significant difference inside the margin is "equivalent".
        """
        new = dataclasses.replace(self, **changes)
        p, verdict = new.p_value if new.p_holm is None else new.p_holm, "inconclusive"
        if new.tost_p < new.alpha:
            verdict = "equivalent"
        elif p < new.alpha and new.mean_difference != 0:
            verdict = "lower loss" if new.mean_difference < 0 else "higher loss"
        return dataclasses.replace(new, verdict=verdict)

    @property
    def label(self) -> str:
        """The treatment's name, with the control's if it is not the usual one."""
        shown = str(self.treatment)
        return shown if self.control == CONTROL else f"{shown} - {self.control}"

    @property
    def identical(self) -> bool:
        """Whether the final weights equal the control's in every seed."""
        return self.n > 0 and self.bitwise_equal == self.n

    def relative(self, name: str) -> float | None:
        """Returns a field over the control's mean loss, or None if it is unknown."""
        value = getattr(self, name)
        value = math.expm1(value) if self.scale == "log" else value / self.control_mean
        return None if math.isnan(value) else value

    def to_json(self) -> Record:
        """Returns all fields; the last four are left out if they are None."""
        fields = dataclasses.asdict(self)
        last = ("bitwise_equal", "n_excluded", "role", "scale")
        return {k: v for k, v in fields.items() if v is not None or k not in last}

    @classmethod
    def from_json(cls, row: Any, path: str = "contrast") -> "Contrast":
        """Reads a contrast of verdict.json; a UserError names an invalid field."""
        for name in ("model", "treatment", "control", "verdict"):
            value = row.get(name) if isinstance(row, Mapping) else ""
            _check(f"{path}.{name}", value, str, "text")
        return _from_json(cls, row, path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The content of verdict.json; mappings are by model.

    Attributes:
        contrasts: all contrasts.
        verdict: `supported`, `refuted` or `inconclusive`.
        claims: the claims.
        losses: the metric by arm, seed and noise draw.
        manipulation: whether noise changed the trajectories.
        margins: margins of equivalence.
        arms: the arms, with their commands.
        excluded: seeds that a contrast leaves out, or None if this was not recorded.
        design: the settings of the comparison.
        seconds: wall seconds, or None if they were not recorded.
    """

    contrasts: tuple[Contrast, ...] = ()
    verdict: Mapping[str, str] = dataclasses.field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    losses: Mapping[str, Arms] = dataclasses.field(default_factory=dict)
    manipulation: Mapping[str, Manipulation] = dataclasses.field(default_factory=dict)
    margins: Mapping[str, Margin] = dataclasses.field(default_factory=dict)
    arms: tuple[ArmRecord, ...] = ()
    excluded: tuple[Exclusion, ...] | None = None
    design: Record = dataclasses.field(default_factory=dict)
    seconds: float | None = None

    @property
    def emulated_only(self) -> bool:
        """Tells whether the arms are recorded and none used a GPU."""
        return bool(self.arms) and not any(arm.gpu for arm in self.arms)

    def of_model(self, model: str) -> list[Contrast]:
        """Returns the contrasts of a model."""
        return [contrast for contrast in self.contrasts if contrast.model == model]

    def to_json(self) -> Record:
        """Returns the content of verdict.json."""
        together = [claim.together_to_json() for claim in self.claims]
        return {
            "contrasts": [contrast.to_json() for contrast in self.contrasts],
            "verdict": self.verdict,
            "claims": [claim.to_json() for claim in self.claims],
            "together": [row for row in together if row is not None],
            "losses": self.losses,
            "manipulation": {k: v._asdict() for k, v in self.manipulation.items()},
            "margins": {k: dataclasses.asdict(v) for k, v in self.margins.items()},
            "arms": [
                {k: v for k, v in vars(arm).items() if v not in (None, "")}
                for arm in self.arms
            ],
            "excluded": self.excluded and [vars(row) for row in self.excluded],
            "design": self.design,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, content: Any) -> "Verdict":
        """Reads the content of verdict.json; only contrasts and verdict are required.

        Raises:
            UserError: a field is invalid, which the message names.
        """
        _check("the file", content, dict, "an object")
        _check("verdict", content.get("verdict"), dict, "an object")
        _check("contrasts", content.get("contrasts"), list, "a list")
        manipulation = content.get("manipulation") or {}
        _check("manipulation", manipulation, dict, "an object")
        checks = {model: check for model, check in manipulation.items() if check}
        for model, check in checks.items():
            _check(f"manipulation.{model}", check, dict, "an object")
        lists = {n: content.get(n) or [] for n in ("claims", "together", "excluded")}
        for name, rows in lists.items():
            _check(name, rows, list | tuple, "a list")
        together = {
            (str(row.get("claim")), str(row.get("model"))): row
            for row in lists["together"]
            if isinstance(row, Mapping)
        }
        excluded = [
            {"reason": row} if isinstance(row, str) else row
            for row in lists["excluded"]
        ]
        read = {
            "contrasts": [
                Contrast.from_json(row, f"contrasts[{i}]")
                for i, row in enumerate(content["contrasts"])
            ],
            "claims": [
                _claim(row, f"claims[{i}]", checks, together)
                for i, row in enumerate(lists["claims"])
            ],
            "manipulation": checks,
            "excluded": excluded if content.get("excluded") is not None else None,
        }
        design = content.get("design") or {}
        _check("design", design, dict, "an object")
        for name in _DESIGN.keys() & design.keys():
            _from_json(_DESIGN[name] | None, design[name], f"design.{name}")
        return _from_json(cls, content | read, "")


def _claim(
    row: Any, path: str, checks: Record, together: Mapping[tuple, Record]
) -> Claim:
    """Reads a claim of a verdict, with the evidence that other sections have on it."""
    _check(path, row, Mapping, "an object")
    name, model = str(row.get("claim")), str(row.get("model"))
    kind, _, remark = name.partition(" (")
    check = checks.get(model) or {} if kind == Kind.NOISE else {}
    more = {
        "kind": kind,
        "remark": remark.removesuffix(")"),
        "found": row,
        "together": together.get((name, model)),
        "distance": row.get("distance", check.get("distance_over_travelled")),
    }
    return _from_json(Claim, row | more, path)


def _from_json(kind: Any, value: Any, path: str) -> Any:
    """Returns a value of a type from JSON; null is the default of a field.

    Objects become dataclasses and named tuples, lists tuples, and texts enums. A value
    that has its type already stays. A UserError names the path of an invalid value.
    """
    origin, kinds = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType and len(kinds) == 2:  # Something, or None.
        return None if value is None else _from_json(kinds[0], value, path)
    if origin is tuple:
        _check(path, value, list | tuple, "a list")
        pair = kinds[-1] is not Ellipsis
        if pair and len(value) != len(kinds):
            raise UserError(f"{path} is {value!r}; expected {len(kinds)} values")
        rows = enumerate(value)
        return tuple(_from_json(kinds[0], row, f"{path}[{i}]") for i, row in rows)
    if origin is Mapping:
        _check(path, value, Mapping, "an object")
        return {k: _from_json(kinds[1], v, f"{path}.{k}") for k, v in value.items()}
    if kind in (int, float):
        _check(path, value, int | float, "a number")
        if abs(value) >= 2**63 and isinstance(value, int):  # No float may hold it.
            raise UserError(f"{path} is {value!r:.20}...; expected a smaller number")
    if kind is str:
        _check(path, value, str, "a text")
    if kind is Any or not isinstance(kind, type) or isinstance(value, kind):
        return value
    if issubclass(kind, StrEnum):
        errors.one_of(path, value, tuple(map(str, kind)))
        return kind(value)
    if not dataclasses.is_dataclass(kind) and not hasattr(kind, "_fields"):
        return value
    _check(path, value, Mapping, "an object")
    fields = {
        name: _from_json(hint, value[name], f"{path}.{name}".lstrip("."))
        for name, hint in typing.get_type_hints(kind).items()
        if value.get(name) is not None
    }
    try:
        return kind(**fields)
    except TypeError as error:  # A field is missing.
        raise UserError(f"{path}: {error}; expected all of verdict.json") from None


def _check(name: str, value: Any, kind: Any, words: str) -> None:
    if not isinstance(value, kind):
        raise UserError(f"{name} is {value!r}; expected {words}")
