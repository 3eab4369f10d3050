"""Where a port first differs from its original, layer by layer.

Each layer v is computed from the *reference's* values of the layers before it, so that
it differs by its own lines alone. With r the reference's value of the layer and v_k
the value under noise,

    d = rms(v - r),     e_k = rms(v_k - v),    k = 1 .. draws,

and the difference is beyond noise if d > max(L q(e, f), W max(e, f)), as in
`distances`, and `explain` does not say otherwise: q is the upper quartile over the
draws and f a floor, one element moved by an ulp. Elements far above all others (a mask
of -1e9) are judged on their own. docs/noise/ports.md shows the use.
"""

import difflib
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from prednet_jax.noise._inject import inject
from prednet_jax.noise.errors import NoiseError, integer
from prednet_jax.noise.questions import layouts
from prednet_jax.noise.questions.distances import (
    FLIPS,
    RATIO_LIMIT,
    WORST_DRAW_FACTOR,
)
from prednet_jax.noise.questions.explain import explain
from prednet_jax.noise.questions.first_difference import NOISE
from prednet_jax.noise.questions.hints import (
    array_hint,
    fitted_hint,
    program_hint,
    widened,
)
from prednet_jax.noise.questions.leaves import (
    as_array,
    describe_leaves,
    rms,
    subtract,
    wide_leaves,
)
from prednet_jax.noise.questions.sampling import BoundCall, with_routines
from prednet_jax.noise.questions.segments import Program, key_text
from prednet_jax.noise.questions.tables import format_table
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder

# Elements so many times the small ones (5 %) are judged apart from the others.
GIANT = 1e6
# A layer is too narrow if it is so many times nearer to the reference in float32.
NARROWER = 8.0
NOISY = ("order", "rounding")
_ORDER = ReductionOrder(granularity="element")
_NOTHING: Mapping[int, Callable] = MappingProxyType({})


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
        after: the lines of the values that these start from, in which all is well.
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
    lines: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

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
            *format_table(head, rows, "<>>><><"),
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
            text += [f"  after {line}" for line in layer.after]
            text += [f"  {line}" for line in layer.lines]
            read = ", ".join(layer.arguments)
            text += [f"  which read {read}"] * bool(read)
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
    noise = NOISE if spec is None else spec
    with_routines(noise)

    def compare(key: Array, /, *args: Any, **kwargs: Any) -> Layers:
        program = Program(BoundCall(fn, args, kwargs))
        marked = _marked(program, theirs)
        if not marked:
            raise NoiseError(
                "the function names no layer: expected one that returns a mapping, or "
                "marks values with jax.ad_checkpoint.checkpoint_name"
            )
        pairs = match(list(marked), list(theirs), names or {})
        if not pairs:
            near = max(itertools.product(marked, theirs), key=_likeness)
            raise NoiseError(
                f"no name in common: here {_some(marked)}; in the reference "
                f"{_some(theirs)}; expected some, or names={{here: there}}, such as "
                f"names={dict([near])}"
            )
        order = sorted(pairs, key=lambda name: program.order(marked[name]))
        there = {name: theirs[pairs[name]] for name in order}
        numbers = [i for name in order for i in marked[name]]
        plain = jax.jit(lambda x: program.values(numbers, x, {}))(program.arrays)
        parts = {n: [np.asarray(plain[i]) for i in marked[n]] for n in order}
        ours = {n: x[0] if len(x) == 1 else np.stack(x) for n, x in parts.items()}
        there, layout = _arranged(ours, there, pairs)
        known = {
            i: part
            for n, r in there.items()
            for i, part in zip(marked[n], r if len(marked[n]) > 1 else [r], strict=True)
        }
        values = _Values(program, known)
        drawn, ordered = (values.drawn(each, key, draws) for each in (noise, _ORDER))
        judged = {i: judge(values.plain[i], r, drawn[i]) for i, r in known.items()}
        # Of the steps of a loop, the first beyond noise or the one nearest to it.
        worst = {
            n: max(marked[n], key=lambda i: min(judged[i].over, 1.001)) for n in order
        }
        rungs = values.rungs([i for i in worst.values() if judged[i].over > 1], key)
        layers = []
        for n, i in worst.items():
            alone = judge(values.plain[i], known[i], ordered[i]).over <= 1
            hint, rung = "", "order" if alone else "rounding"
            rung = "identical" if judged[i].difference == 0 else rung
            rung = rungs.get(i) or values.too_narrow(i) or rung
            if rung == "beyond":
                hint = values.hint(i, drawn[i])
            elif rung not in ("identical", *NOISY):
                hint = f"{rung} on one side alone"
            if len(marked[n]) > 1 and judged[i].over > 1:
                at = f"first at step {marked[n].index(i)}"
                hint = f"{at}; {hint}" if hint else at
            total = judge(ours[n], there[n], []).difference
            found = *judged[i][:3], rung, hint, total
            layers.append(Layer(n, pairs[n], *found, *values.where(i)))
        rest = tuple(n for n in marked if n not in pairs)
        left = tuple(n for n in theirs if n not in pairs.values())
        hidden = ", ".join(sorted(program.hidden))
        notes = [f"not seen, inside a branch or a while loop: {hidden}"] * bool(hidden)
        return Layers(tuple(layers), layout, (rest, left), tuple(notes))

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
    arrays = {str(name): as_array(x) for name, x in given.items()}
    wrong = [n for n, x in arrays.items() if x.dtype.kind not in "biufcV"]
    if wrong or not arrays:
        found = f"{wrong[0]} is no array of numbers" if wrong else "empty"
        raise NoiseError(f"{what}: {found}: expected arrays by name")
    return arrays


def _likeness(pair: tuple[str, str]) -> float:
    return difflib.SequenceMatcher(None, *pair).ratio()


def _some(names: Sequence[str] | Mapping[str, Any]) -> str:
    names = list(names)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _marked(program: Program, theirs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns the numbers of the values of each layer, by name."""
    known = {"".join(canonical(name)) for name in theirs}
    marked: dict[str, tuple[int, ...]] = {}
    for name, numbers in program.named.items():
        if len(numbers) == 1 or "".join(canonical(name)) in known:
            marked[name] = tuple(numbers)
        else:
            marked |= {f"{name}/{i}": (n,) for i, n in enumerate(numbers)}
    outputs = [(leaf_name(keys), (number,)) for keys, number in program.outputs]
    # What has a place in a tuple alone is no layer, unless there is nothing else.
    named = [(name, n) for name, n in outputs if canonical(name)[:1] != ("result",)]
    for name, number in named or (outputs if not marked else []):
        marked.setdefault(name, number)
    return marked


def leaf_name(keys: Sequence[Any]) -> str:
    """Returns the name of a leaf of a result: its path without what frameworks add."""
    # Flax NNX wraps an array in a variable with a value.
    parts = [key_text(key) for key in keys if getattr(key, "name", "") != "value"]
    start = next((i for i, p in enumerate(parts) if not p.isdecimal()), None)
    if start is None:
        return "/".join(["result", *parts])
    # A place in (result, intermediates), and the first of a sown tuple, is no name.
    parts = parts[start:-1] if parts[-1] == "0" else parts[start:]
    kept = [p for p in parts if p not in ("intermediates", "__call__")]
    return "/".join(kept) or "result"


def canonical(name: str) -> tuple[str, ...]:
    """Returns the parts of a name, of each its letters and digits in lower case."""
    parts = re.split(r"[./\[\]:~]+", name.lower())
    return tuple(filter(None, (re.sub(r"[^a-z0-9]", "", part) for part in parts)))


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
    for same in (lambda a, b: "".join(a) == "".join(b), _ends_with):
        fits = {n: [t for t, b in yours.items() if same(a, b)] for n, a in mine.items()}
        taken = [t for several in fits.values() for t in several]
        for name, several in fits.items():
            if len(several) == 1 and taken.count(several[0]) == 1:
                pairs[name] = several[0]
                del mine[name], yours[several[0]]
    return pairs


def _ends_with(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Whether one name is the end of the other."""
    long, short = sorted((a, b), key=len, reverse=True)
    end = "".join(short)
    return bool(end) and any("".join(long[i:]) == end for i in range(len(long)))


def _arranged(
    ours: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
    names: Mapping[str, str],
) -> tuple[dict[str, np.ndarray], str]:
    """Returns the reference in the order of axes here, and that order in words."""
    rules = layouts.find([(r, ours[name]) for name, r in theirs.items()])
    moved = {str(rule): 0 for rule in rules if rule and not rule.is_plain}
    layout = "; ".join(moved) or "the same here and there"
    arranged = {}
    for (name, r), rule in zip(theirs.items(), rules, strict=True):
        shape = ours[name].shape
        there = rule.arrange(r, shape) if rule else None
        if there is None:
            raise NoiseError(
                f"{name} has the shape {shape}, and {names[name]} of the reference "
                f"{r.shape}: expected the same, up to the order of axes (other layers: "
                f"{layout}); were both given the same arguments?"
            )
        arranged[name] = there
    return arranged, layout


class _Values:
    """The values of a program, each computed from the reference's before it."""

    def __init__(self, program: Program, known: Mapping[int, np.ndarray]) -> None:
        self.program, self.known = program, known
        types = program.types
        cast = {i: jax.numpy.asarray(x, types[i].dtype) for i, x in known.items()}
        self.given = cast, program.arrays
        self.plain = jax.device_get(jax.jit(self.function(known))(*self.given))
        # Lines that are running whatever layer is computed.
        segments = [program.segment([i], known) for i in known]
        every = ({x for n in nodes for x in n.sources} for nodes in segments if nodes)
        self.shared: set[str] = set.intersection(*every) if len(known) > 1 else set()

    def function(
        self, numbers: Iterable[int], changed: Mapping[int, Callable] = _NOTHING
    ) -> Callable:
        """Returns some values as a function of the known ones and the arguments."""
        return lambda known, arrays: self.program.values(
            numbers, arrays, known, changed
        )

    def drawn(
        self, spec: NoiseSpec, key: Array, draws: int
    ) -> dict[int, list[np.ndarray]]:
        """Returns the differences that noise makes in each value."""
        noisy = inject(self.function(self.plain), with_routines(spec))
        results = list(BoundCall(noisy, self.given, {}).draw(noisy, key, draws))
        plain = {i: _wide(x) for i, x in self.plain.items()}
        return {i: [subtract(_wide(x[i]), plain[i]) for x in results] for i in plain}

    def rungs(self, numbers: Sequence[int], key: Array) -> dict[int, str]:
        """Returns what `explain` says of values that differ by more than noise."""
        away = {i: self.known[i] - self.plain[i] for i in numbers}
        finite = [i for i in numbers if np.isfinite(away[i]).all()]
        found = dict.fromkeys(numbers, "beyond")
        if finite:
            pair = ({i: side[i] for i in finite} for side in (self.plain, self.known))
            found |= explain(self.function(finite), *pair)(key, *self.given).rung
        return found

    def too_narrow(self, i: int) -> str:
        """Returns the format of a value that the reference has in float32, or ""."""
        format_, changed = widened(self.program.segment([i], self.known))
        narrow, theirs = _wide(self.plain[i]), _wide(self.known[i])
        away = rms(subtract(narrow, theirs))
        if not format_ or away == 0:
            return ""
        try:
            wide = _wide(self._evaluate(i, changed))
        except (TypeError, ValueError):
            return ""  # An equation whose types cannot be changed.
        return format_ if NARROWER * rms(subtract(wide, theirs)) < away else ""

    def hint(self, i: int, drawn: Sequence[np.ndarray]) -> str:
        """Returns what a value, and its lines, show of the cause."""
        ours, theirs = self.plain[i], self.known[i]

        def explains(changed: np.ndarray, part: tuple[slice, ...]) -> bool:
            cut = [x[part] for x in drawn]
            return judge(changed[part].astype(ours.dtype), theirs[part], cut).over <= 1

        nodes = self.program.segment([i], self.known)
        evaluate = functools.partial(self._evaluate, i)
        return (
            array_hint(ours, theirs, explains)
            or program_hint(self.program, nodes, evaluate, explains)
            or fitted_hint(ours, theirs, explains, range(ours.ndim))
        )

    def _evaluate(self, i: int, changed: Mapping[int, Callable]) -> np.ndarray:
        return np.asarray(self.function([i], changed)(*self.given)[i])

    def where(self, i: int) -> tuple[tuple[str, ...], ...]:
        """Returns the lines of a value, those before it, and the arguments read.

        Lines that call those functions are among them, unless they call all layers.
        """
        nodes = self.program.segment([i], self.known)
        read = {i for n in nodes for i in n.operands} & self.known.keys()
        before = [n for n in self.program.nodes if read.intersection(n.results)]
        lines, after = (
            dict.fromkeys(n.sources[0] for n in some if n.sources)
            for some in (nodes, before)
        )
        callers = (line for n in nodes for line in n.sources[1:])
        lines |= dict.fromkeys(line for line in callers if line not in self.shared)
        elsewhere = tuple(line for line in after if line not in lines)
        return tuple(lines), elsewhere, tuple(self.program.arguments(nodes))


def _wide(x: Any) -> np.ndarray:
    return wide_leaves(x)[0]


class Judged(NamedTuple):
    """A difference, relative, what noise makes of it, and its part of the bound."""

    difference: float | None
    expected: float
    ratio: float | None
    over: float


def judge(ours: Any, theirs: Any, drawn: Sequence[np.ndarray]) -> Judged:
    """Compares a value with the reference's.

    `drawn` are the differences that noise makes, in float64.
    """
    epsilon = describe_leaves(ours)[0].epsilon
    v, r = (wide_leaves(x)[0] for x in (ours, theirs))
    known = np.isfinite(v) & np.isfinite(r)
    away = subtract(v, r)
    if not np.isfinite(away).all():
        return Judged(None, 0.0, None, math.inf)
    if not epsilon:
        # Of whole numbers the fraction that differs counts.
        far, *noises = (np.mean(x != 0) if v.size else 0.0 for x in (away, *drawn))
        over = far / _bound(noises, FLIPS / RATIO_LIMIT if v.size > 1 else 0.0)
        return _judged(float(far), [*map(float, noises)], 1.0, float(over))
    size = np.abs(np.where(known, r, 0))
    # A mask may be most of an array.
    typical = float(np.quantile(size[size > 0], 0.05)) if (size > 0).any() else 0.0
    giant = size > GIANT * typical
    over = 0.0
    for part in (giant, ~giant):
        count = max(1, int(part.sum()))
        floor = epsilon * float(np.max(size * part, initial=0)) / math.sqrt(count)
        far = rms(away * part)
        levels = [rms(x * part) for x in drawn]
        scale = math.sqrt(part.size / count)
        over = max(over, far * scale / _bound([x * scale for x in levels], floor))
    noises = list(map(rms, drawn))
    return _judged(rms(away), noises, rms(size), over)


def _bound(noises: Sequence[float], floor: float) -> float:
    """Returns the difference that noise does not exceed."""
    levels = np.maximum(noises or [0.0], floor or np.finfo(float).tiny)
    quartile = float(np.quantile(levels, 0.75, method="lower"))
    return max(RATIO_LIMIT * quartile, WORST_DRAW_FACTOR * float(levels.max()))


def _judged(far: float, noises: Sequence[float], size: float, over: float) -> Judged:
    expected = rms(np.array(noises)) / (size or 1.0)
    ratio = far / (size or 1.0) / expected if expected else None
    return Judged(far / (size or 1.0), expected, 0.0 if far == 0 else ratio, over)
