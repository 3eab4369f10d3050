"""Where a port first differs from its original, layer by layer.

Each layer v is computed from the *reference's* values of the layers before it, so that
it differs by its own lines alone. With r the reference's value of the layer and v_k
the value under noise,

    d = rms(v - r),     e_k = rms(v_k - v),    k = 1 .. draws,

and the difference is beyond noise if d > max(MARGIN q(e, f), TWICE max(e, f)) and
`explain` does not say otherwise: q is the upper quartile over the draws and f a floor,
one element moved by an ulp. Elements far above all others (a mask of -1e9) are judged
on their own. docs/noise/ports.md shows the use.
"""

import difflib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise import random_bits
from prednet_jax.noise.errors import NoiseError, integer
from prednet_jax.noise.inject import inject
from prednet_jax.noise.questions import layouts, runs
from prednet_jax.noise.questions.explain import explain
from prednet_jax.noise.questions.first_difference import NOISE
from prednet_jax.noise.questions.segments import Program
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder

MARGIN, TWICE = 10.0, 2.0
# Of a discrete value, the fraction of elements that any noise may flip.
FLIPS = 1e-3
# Elements so many times the median magnitude are judged apart from the others.
GIANT = 1e4
NOISY = ("order", "rounding")


class Layer(NamedTuple):
    """One layer, computed from the reference's values of the layers before it.

    Attributes:
        name: here; `reference`: there.
        difference: RMS relative to the reference; None if numbers on one side alone
            are NaN or infinite.
        expected: the same for noise, RMS over the draws; `ratio`: of the two.
        rung: as of `explain`: `identical`, `order` and `rounding` are noise.
        hint: what the numbers show of the cause.
        total: the difference of the whole program, those of earlier layers included.
        lines: the lines between this layer and the layers before.
        arguments: the arguments that these lines read.
    """

    name: str
    reference: str
    difference: float | None
    expected: float
    ratio: float | None
    rung: str
    hint: str
    total: float | None
    lines: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def is_beyond(self) -> bool:
        """Whether the layer differs by more than noise."""
        return self.rung not in ("identical", *NOISY)


class Layers(NamedTuple):
    """What `compare_layers` found.

    Attributes:
        layers: in the order of the program.
        layout: how axes of the reference are ordered, of the whole report.
        unmatched: names here, and names of the reference, without a counterpart.
        notes: what could not be seen.
    """

    layers: tuple[Layer, ...]
    layout: str
    unmatched: tuple[tuple[str, ...], tuple[str, ...]]
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Layer | None:
        """The first layer beyond noise."""
        return next((layer for layer in self.layers if layer.is_beyond), None)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines in which the fault of the first layer beyond noise must lie."""
        return self.first.lines if self.first else ()

    def __str__(self) -> str:
        head = ["layer", "difference", "of noise", "ratio", "rung", "in all", ""]
        rows = [
            [x.name, x.difference, x.expected, x.ratio, x.rung, x.total, x.hint]
            for x in self.layers
        ]
        text = [
            *runs.table(head, rows, "<>>><><"),
            "difference: of the layer computed from the reference's earlier layers;",
            "in all: of the whole program",
            f"order of axes: {self.layout}",
        ]
        for where, names in zip(("here", "there"), self.unmatched, strict=True):
            text += [f"unmatched {where}: {', '.join(names)}"] * bool(names)
        text += self.notes
        beyond = [layer for layer in self.layers if layer.is_beyond]
        if not beyond:
            text.append("no layer is beyond noise")
        for i, layer in enumerate(beyond):
            what = "first layer beyond noise" if not i else "another"
            text.append(f"{what}: {layer.name}{': ' * bool(layer.hint)}{layer.hint}")
            text += [f"  {line}" for line in layer.lines]
            read = ", ".join(layer.arguments)
            text += [f"  which read the arguments {read}"] * bool(read)
        return "\n".join(text)

    def to_json(self) -> dict[str, Any]:
        """Returns all that the report holds."""
        return self._asdict() | {"first": self.first, "lines": self.lines}


def compare_layers(
    fn: Callable,
    reference: Any,
    *,
    names: Mapping[str, str] | None = None,
    spec: NoiseSpec | None = None,
    draws: int = 8,
) -> Callable[..., Layers]:
    """Compares the layers of a function with recorded ones.

    Args:
        fn: the port. Its layers are the arrays of the mapping that it returns (of
            nested ones, such as Flax's intermediates, by path), and the values that
            it names with `jax.ad_checkpoint.checkpoint_name`; a name in a loop has one
            value for each step, stacked on a first axis.
        reference: arrays by name, or an .npz file of them.
        names: for names here the names there, where they do not agree.
        spec: the noise that is no difference. Defaults to another order of sums and
            the rounding of the last place.
        draws: number of noisy runs, 2 or more.

    Returns:
        `compare(key, *args, **kwargs)`, which returns the `Layers`.

    Raises:
        NoiseError: as for `inject`, and if no name or a shape does not fit.
    """
    integer("draws", draws, 2)
    theirs = arrays_of("reference", reference)
    noise = runs.reaching(NOISE if spec is None else spec)

    def compare(key: Array, /, *args: Any, **kwargs: Any) -> Layers:
        program = Program(runs.Call(fn, args, kwargs))
        marked = _marked(program, theirs)
        pairs = match(list(marked), list(theirs), names or {})
        if not pairs:
            raise NoiseError(
                f"no name in common: here {_some(marked)}; in the reference "
                f"{_some(theirs)}; expected some, or names={{here: there}}"
            )
        order = sorted(pairs, key=lambda name: program.order(marked[name]))
        judge = _Judge(program, {n: marked[n] for n in order}, noise, key, draws)
        there = {n: theirs[pairs[n]] for n in order}
        found = judge.layers(there, pairs)
        rest = tuple(n for n in marked if n not in pairs)
        left = tuple(n for n in theirs if n not in pairs.values())
        hidden = ", ".join(sorted(program.hidden))
        notes = [f"not seen, inside a branch or a while loop: {hidden}"] * bool(hidden)
        return Layers(found, judge.layout, (rest, left), tuple(notes))

    return compare


def arrays_of(what: str, given: Any) -> dict[str, np.ndarray]:
    """Returns arrays by name, of a mapping or an .npz file."""
    if isinstance(given, str | os.PathLike):
        try:
            with open(given, "rb") as file, np.load(file, allow_pickle=False) as held:
                given = {name: held[name] for name in held.files}
        except Exception as error:
            why = getattr(error, "strerror", None) or "it is none, or damaged"
            raise NoiseError(
                f"{what}={given}: expected a file of arrays as numpy.savez writes it "
                f"({why})"
            ) from None
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise NoiseError(f"{what}: {kind}: expected arrays by name, or an .npz file")
    arrays = {str(name): runs.array(x) for name, x in given.items()}
    wrong = [n for n, x in arrays.items() if x.dtype.kind not in "biufcV"]
    if wrong or not arrays:
        found = f"{wrong[0]} is no array of numbers" if wrong else "empty"
        raise NoiseError(f"{what}: {found}: expected arrays by name")
    return arrays


def _some(names: Sequence[str] | Mapping[str, Any]) -> str:
    names = list(names)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _marked(program: Program, theirs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns the numbers of the values of each layer, by name."""
    known = {canonical(name) for name in theirs}
    marked: dict[str, tuple[int, ...]] = {}
    for name, numbers in program.named.items():
        if len(numbers) == 1 or canonical(name) in known:
            marked[name] = tuple(numbers)
        else:
            marked |= {f"{name}/{i}": (n,) for i, n in enumerate(numbers)}
    outputs = [(_name(keys), (number,)) for keys, number in program.outputs]
    # What has a place in a tuple alone is no layer, unless there is nothing else.
    named = [(name, n) for name, n in outputs if canonical(name)[:1] != ("result",)]
    for name, numbers in named or (outputs if not marked else []):
        marked.setdefault(name, numbers)
    return marked


def _name(keys: Sequence[Any]) -> str:
    """Returns the name of a leaf of a result: its path without what frameworks add."""
    parts: list[str] = []
    for key in keys:
        part = getattr(key, "key", getattr(key, "name", getattr(key, "idx", None)))
        parts.append(str(part))
    start = next((i for i, p in enumerate(parts) if not p.isdecimal()), None)
    if start is None:
        return "/".join(["result", *parts])
    # A place in (result, intermediates), and the first of a sown tuple, is no name.
    parts = parts[start:-1] if parts[-1] == "0" else parts[start:]
    kept = [p for p in parts if p not in ("intermediates", "__call__", "value")]
    return "/".join(kept) or "result"


def canonical(name: str) -> tuple[str, ...]:
    """Returns the words and numbers of a name, without signs and cases."""
    return tuple(re.findall(r"[a-z]+|\d+", name.lower()))


def match(
    here: Sequence[str], there: Sequence[str], names: Mapping[str, str]
) -> dict[str, str]:
    """Returns for names here the names there: as given, equal, or equal at the end."""
    for given, known, side in (
        (names.keys(), here, "here"),
        (names.values(), there, "in the reference"),
    ):
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0)
                raise NoiseError(
                    f"names: {name!r} is not {side}: expected one of {_some(known)}; "
                    f"the nearest is {near[0]!r}"
                )
    pairs = dict(names)
    mine, yours = (
        {n: canonical(n) for n in every if n not in taken}
        for every, taken in ((here, names.keys()), (there, set(names.values())))
    )
    for same in (
        lambda a, b: a == b,
        lambda a, b: bool(a and b) and (a[-len(b) :] == b or b[-len(a) :] == a),
    ):
        fits = {n: [t for t, b in yours.items() if same(a, b)] for n, a in mine.items()}
        taken = [t for several in fits.values() for t in several]
        for name, several in fits.items():
            if len(several) == 1 and taken.count(several[0]) == 1:
                pairs[name] = several[0]
                del mine[name], yours[several[0]]
    return pairs


class _Judge:
    """The comparison of the marked values of a program with the reference's."""

    def __init__(
        self,
        program: Program,
        marked: dict[str, tuple[int, ...]],
        spec: NoiseSpec,
        key: Array,
        draws: int,
    ) -> None:
        self._program, self._marked = program, marked
        self._spec, self._key, self._draws = spec, key, draws
        self.layout = ""

    def layers(
        self, theirs: Mapping[str, np.ndarray], names: Mapping[str, str]
    ) -> tuple[Layer, ...]:
        """Returns the judged layers, in order."""
        plain = self._run({}, list(theirs))
        ours = {name: np.asarray(x) for name, x in plain.items()}
        rules = layouts.find([(r, ours[name]) for name, r in theirs.items()])
        moved = [str(rule) for rule in rules.values() if not rule.is_plain]
        self.layout = "; ".join(moved) or "the same here and there"
        there: dict[str, np.ndarray] = {}
        for name, r in theirs.items():
            shape = ours[name].shape
            rule = rules.get((r.ndim, len(shape)))
            arranged = rule.arrange(r, shape) if rule else None
            if arranged is None:
                raise NoiseError(
                    f"{name} has the shape {shape}, and {names[name]} of the reference "
                    f"{r.shape}: expected the same, up to the order of axes that the "
                    f"other layers have ({self.layout}); were both given the same "
                    "arguments?"
                )
            there[name] = arranged
        self._known = self._values(there)
        forced = self._run(self._known, list(there))
        noisy = self._drawn(self._spec, list(there))
        ordered = self._drawn(runs.reaching(_ORDER), list(there))
        found = []
        for name, r in there.items():
            v = np.asarray(forced[name])
            judged = judge(v, r, [x[name] for x in noisy])
            numbers = self._marked[name]
            lines, arguments = self._where(numbers)
            rung = "identical" if judged.difference == 0 else "rounding"
            if judged.over > 1:
                rung = self._rung(name, v, r)
            elif rung == "rounding":
                alone = judge(v, r, [x[name] for x in ordered])
                rung = "order" if alone.over <= 1 else rung
            hint = ""
            total = judge(ours[name], r, [])
            numbers = judged.difference, judged.expected, judged.ratio, rung, hint
            layer = Layer(
                name, names[name], *numbers, total.difference, lines, arguments
            )
            found.append(layer)
        return tuple(found)

    def _values(self, there: Mapping[str, np.ndarray]) -> dict[int, Array]:
        """Returns the reference's values by number."""
        known = {}
        for name, r in there.items():
            numbers = self._marked[name]
            for i, part in zip(numbers, r if len(numbers) > 1 else [r], strict=True):
                known[i] = jax.numpy.asarray(part, self._program.types[i].dtype)
        return known

    def _function(self, names: Sequence[str]) -> Callable:
        """Returns the layers as a function of known values and the arguments."""

        def layers(known: dict[int, Array], arrays: Sequence[Array]) -> dict:
            numbers = [i for name in names for i in self._marked[name]]
            values = self._program.values(numbers, arrays, known)
            parts = {n: [values[i] for i in self._marked[n]] for n in names}
            return {
                n: x[0] if len(x) == 1 else jax.numpy.stack(x) for n, x in parts.items()
            }

        return layers

    def _run(self, known: dict[int, Array], names: Sequence[str]) -> dict[str, Any]:
        function = jax.jit(self._function(names))
        return jax.device_get(function(known, self._program.arrays))

    def _drawn(self, spec: NoiseSpec, names: Sequence[str]) -> list[dict[str, Any]]:
        call = runs.Call(None, (self._known, self._program.arrays), {})
        noisy = inject(self._function(names), spec)
        return list(call.draw(noisy, self._key, self._draws))

    def _rung(self, name: str, ours: np.ndarray, theirs: np.ndarray) -> str:
        """Returns what `explain` says of a layer beyond the noise."""
        if not np.isfinite(ours - theirs).all():
            return "beyond"
        ask = explain(self._function([name]), {name: ours}, {name: theirs})
        return ask(self._key, self._known, self._program.arrays).leaves[0].rung

    def _where(self, numbers: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the lines between values and those known before, and what they read."""
        nodes = self._program.segment(numbers, self._known)
        lines = dict.fromkeys(n.step.source for n in nodes if n.step.source)
        return tuple(lines), tuple(self._program.arguments(nodes))


_ORDER = ReductionOrder(granularity="element")


class Judged(NamedTuple):
    """A difference, relative, what noise makes of it, and its part of the bound."""

    difference: float | None
    expected: float
    ratio: float | None
    over: float


def judge(ours: Any, theirs: Any, noisy: Sequence[Any]) -> Judged:
    """Compares a value with the reference's, and with what noise makes of it."""
    epsilon = runs.leaves(ours)[0].epsilon
    v, r, *drawn = (runs.values(x)[0] for x in (ours, theirs, *noisy))
    known = np.isfinite(v) & np.isfinite(r)
    away = runs.difference(v, r)
    if not np.isfinite(away).all():
        return Judged(None, 0.0, None, math.inf)
    if not epsilon:
        # Of whole numbers the fraction that differs counts.
        far, *noises = (np.mean(x != v) if v.size else 0.0 for x in (r, *drawn))
        over = far / _bound(noises, FLIPS / MARGIN if v.size > 1 else 0.0)
        return _judged(float(far), [*map(float, noises)], 1.0, float(over))
    size = np.abs(np.where(known, r, 0))
    typical = float(np.median(size[size > 0])) if (size > 0).any() else 0.0
    giant = size > GIANT * typical
    over = 0.0
    for part in (giant, ~giant):
        count = max(1, int(part.sum()))
        floor = epsilon * float(np.max(size * part, initial=0)) / math.sqrt(count)
        far = runs.rms(away * part)
        levels = [runs.rms(runs.difference(x, v) * part) for x in drawn]
        scale = math.sqrt(part.size / count)
        over = max(over, far * scale / _bound([x * scale for x in levels], floor))
    noises = [runs.rms(runs.difference(x, v)) for x in drawn]
    return _judged(runs.rms(away), noises, runs.rms(size), over)


def _bound(noises: Sequence[float], floor: float) -> float:
    """Returns the difference that noise does not exceed."""
    levels = np.maximum(noises or [0.0], floor or np.finfo(float).tiny)
    quartile = float(np.quantile(levels, 0.75, method="lower"))
    return max(MARGIN * quartile, TWICE * float(levels.max()))


def _judged(far: float, noises: Sequence[float], size: float, over: float) -> Judged:
    expected = runs.rms(np.array(noises)) / (size or 1.0)
    ratio = far / (size or 1.0) / expected if expected else None
    return Judged(far / (size or 1.0), expected, 0.0 if far == 0 else ratio, over)
