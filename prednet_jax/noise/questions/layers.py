"""Finds where a port first differs from its original, layer by layer.

Each layer is computed from the *reference's* values of the layers before it, so that
only its own lines can make it differ (`values`). docs/noise/ports.md shows the use.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from prednet_jax.noise.errors import NoiseError, check_draws, expect
from prednet_jax.noise.loops import naming_failures
from prednet_jax.noise.questions import layouts
from prednet_jax.noise.questions.names import arrays_of, canonical, leaf_names, match
from prednet_jax.noise.questions.precision import CASTS
from prednet_jax.noise.questions.sampling import BoundCall, keyed, with_routines
from prednet_jax.noise.questions.segments import Program
from prednet_jax.noise.questions.values import SubstitutedValues, judge
from prednet_jax.noise.specs import NoiseSpec, ReductionOrder
from prednet_jax.noise.tables import format_table, joined, unmatched_lines
from prednet_jax.noise.types import Function

NOISY = ("identical", "order", "rounding")
ORDER = ReductionOrder(granularity="element")
# For each layer the numbers of its values, one for each loop step, and its array.
Numbers = Mapping[str, Sequence[int]]
Arrays = Mapping[str, np.ndarray]
_LEGEND = [
    "right up to: the values of these lines are the reference's;",
    "look at: one of these lines is wrong, or a line is missing before them;",
    "arguments read: by these lines; an argument may have another value there",
]


class Layer(NamedTuple):
    """One layer, computed from the reference's values of the layers before it.

    Attributes:
        name: the name here.
        reference: the name in the reference.
        difference: RMS relative to the reference. None if numbers on only one side are
            NaN or infinite.
        expected: the difference that noise causes, RMS over the draws.
        ratio: `difference` divided by `expected`.
        rung: the cause, as in `explain`: `identical`, `order` and `rounding` are noise.
        hint: a likely fault that the numbers show, or "".
        total: the difference of the whole program, including earlier layers.
        lines: the lines between this layer and the layers before.
        after: the lines of the values from which `lines` start; these values are right.
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
        return self.rung not in NOISY


class Layers(NamedTuple):
    """The result of `compare_layers`.

    Attributes:
        layers: the layers in the order of the program.
        layout: the order of the reference's axes, for the whole report.
        unmatched: names here, and names of the reference, without a counterpart.
        notes: names that could not be seen.
        is_partial: whether the result, or a layer here, was not compared.
    """

    layers: tuple[Layer, ...]
    layout: str
    unmatched: tuple[tuple[str, ...], tuple[str, ...]]
    notes: tuple[str, ...] = ()
    is_partial: bool = False

    @property
    def first(self) -> Layer | None:
        """The first layer beyond noise."""
        return next((layer for layer in self.layers if layer.is_beyond), None)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines in which the fault of the first layer beyond noise must lie."""
        return self.first.lines if self.first else ()

    def __str__(self) -> str:
        head = ["layer", "difference", "of noise", "ratio", "cause", "in all", ""]
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
        text += [*unmatched_lines(self.unmatched), *self.notes]
        beyond = [layer for layer in self.layers if layer.is_beyond]
        if not beyond:
            alone = " among those compared" if self.is_partial else ""
            text.append(f"no layer is beyond noise{alone}")
        for i, layer in enumerate(beyond):
            what = "another" if i else "first layer beyond noise"
            text.append(f"{what}: {layer.name}{': ' * bool(layer.hint)}{layer.hint}")
            text += [f"  right up to: {line}" for line in layer.after]
            text += [f"  look at: {line}" for line in layer.lines]
            read = ", ".join(layer.arguments)
            text += [f"  arguments read: {read}"] * bool(read)
        return "\n".join(text + _LEGEND * bool(beyond))


def compare_layers(
    fn: Function,
    reference: object,
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
        reference: arrays by name, also nested or a state of Flax NNX, or an .npz
            file of them.
        names: for names here the names there, where they do not agree.
        spec: the noise that does not count as a difference. Defaults to another order
            of sums and the rounding of the last place.
        draws: number of noisy runs, 2 or more.

    Returns:
        `compare(key, *args, **kwargs)`, which returns the `Layers`.

    Raises:
        NoiseError: as for `inject`, and if no name or a shape does not fit.
    """
    check_draws(draws, 2)
    pairs_given = {} if names is None else names
    by_name = isinstance(pairs_given, Mapping) and all(
        isinstance(x, str) for pair in pairs_given.items() for x in pair
    )
    expect(by_name, "names", names, "a dictionary of names here and in the reference")
    theirs = arrays_of("reference", reference)
    noise = with_routines(spec)

    @naming_failures()
    def compare(call: BoundCall, key: Array) -> Layers:
        program = Program(call)
        marked = _marked(program, theirs)
        if not marked:
            raise NoiseError(
                "the function names no layer: expected one that returns a mapping, or "
                "marks values with jax.ad_checkpoint.checkpoint_name"
            )
        pairs = match(list(marked), list(theirs), pairs_given)
        results, last = {n for n in marked if _is_result(n)}, list(theirs)[-1]
        notes = []
        if "result" in results - pairs.keys() and last not in pairs.values():
            shape = program.types[marked["result"][0]].shape
            if layouts.fitting(theirs[last], shape):
                pairs["result"] = last
                notes.append(
                    f"result: compared with {last}, the last of the reference; "
                    'names={"result": ...} gives another'
                )
        index = {name: i for i, name in enumerate(theirs)}
        _separate(program, marked, sorted(pairs, key=lambda n: index[pairs[n]]))
        order = sorted(pairs, key=lambda name: program.order(marked[name]))
        chosen = {name: marked[name] for name in order}
        numbers_known = [i for numbers in chosen.values() for i in numbers]
        plain = jax.jit(lambda x: program.values(numbers_known, x, {}))(program.arrays)
        ours = _stacked(plain, chosen)
        paired = {n: theirs[pairs[n]] for n in order}
        there, layout = _arranged(program, chosen, ours, paired, pairs)
        totals = {n: judge(ours[n], there[n], []).difference for n in order}
        only_here = tuple(n for n in marked if n not in pairs and n not in results)
        only_there = tuple(n for n in theirs if n not in pairs.values())
        hidden = ", ".join(sorted(program.hidden))
        notes += [f"not seen, inside a branch or a while loop: {hidden}"] * bool(hidden)
        is_partial = bool(hidden or only_here)
        for name in results - pairs.keys():
            nodes = program.segment(marked[name], numbers_known)
            lines = dict.fromkeys(n.sources[0] for n in nodes if n.sources)
            if lines:
                notes.append(f"not compared: {name}, computed at {', '.join(lines)}")
                is_partial = True
        layers = tuple(
            layer._replace(reference=pairs[layer.name], total=totals[layer.name])
            for layer in _compared(program, chosen, there, noise, key, draws)
        )
        return Layers(layers, layout, (only_here, only_there), tuple(notes), is_partial)

    return keyed(fn, compare)


def _separate(
    program: Program, marked: dict[str, tuple[int, ...]], names: Iterable[str]
) -> None:
    """Gives each of several names of one value a value of its own.

    Each is a copy of the one before, in the order of the reference: where it differs
    between them, the port lacks what the reference computes there.
    """
    last: dict[int, str] = {}
    for name in names:
        for i in marked[name]:
            if before := last.get(i):
                original = program.copied(i)
                numbers = (original if j == i else j for j in marked[before])
                marked[before] = tuple(numbers)
            last[i] = name


def _stacked(values: Mapping[int, ArrayLike], marked: Numbers) -> dict[str, np.ndarray]:
    """Returns the arrays of layers, loop steps stacked."""
    parts = {n: [np.asarray(values[i]) for i in marked[n]] for n in marked}
    return {n: x[0] if len(x) == 1 else np.stack(x) for n, x in parts.items()}


def _split(arrays: Arrays, marked: Numbers) -> dict[int, np.ndarray]:
    """Returns the values of layers by number, one for each loop step."""
    return {
        i: part
        for n, x in arrays.items()
        for i, part in zip(marked[n], x if len(marked[n]) > 1 else [x], strict=True)
    }


def _compared(
    program: Program,
    marked: Numbers,
    there: Arrays,
    noise: NoiseSpec,
    key: Array,
    draws: int,
) -> list[Layer]:
    """Returns the layers, each computed from the reference's values before it.

    Args:
        program: the port.
        marked: for each layer the numbers of its values, one for each loop step.
        there: for each layer the reference, in the order of axes here.
        noise: the noise that does not count as a difference.
        key: from which the keys of the draws are split.
        draws: number of noisy runs.
    """
    by_number = _split(there, marked)
    values = SubstitutedValues(program, by_number)
    drawn, ordered = (values.drawn(each, key, draws) for each in (noise, ORDER))
    judged = {i: judge(values.plain[i], r, drawn[i]) for i, r in by_number.items()}
    # For a loop, the first step beyond noise or the step nearest to it.
    worst = {
        n: max(x, key=lambda i: min(judged[i].over, 1.001)) for n, x in marked.items()
    }
    beyond = [i for i in worst.values() if judged[i].over > 1]
    factors = {i: values.factor(i, drawn[i]) for i in beyond}
    formats = values.formats_there([i for i in beyond if not factors[i]])
    rounded = values.rounded(formats, drawn)
    there_is = {i: "" if factors[i] else values.format_of(i, formats) for i in beyond}
    explained = {
        i: name
        for i, name in there_is.items()
        if name and judge(values.plain[i], by_number[i], rounded[i]).over <= 1
    }
    rungs = values.rungs([i for i in beyond if i not in explained], key) | explained

    def layer(name: str, i: int) -> Layer:
        alone = judge(values.plain[i], by_number[i], ordered[i])
        rung = "order" if alone.expected and alone.over <= 1 else "rounding"
        rung = "identical" if judged[i].difference == 0 else rung
        rung = rungs.get(i, rung)
        # A narrow format on one side may be no more than its own noise, or the function
        # may cast to it.
        rung = values.too_narrow(i) or rung if rung in (*NOISY, CASTS) else rung
        # A factor has fewer parameters than a rounding, and may look like one.
        rung = "beyond" if factors.get(i) else rung
        hint = "" if rung in NOISY else f"{rung} on one side alone"
        if rung == "beyond":
            there = f"the reference has numbers of {there_is[i]}" * bool(there_is[i])
            hint = joined(values.hint(i, rounded[i]), there)
        if len(marked[name]) > 1 and judged[i].over > 1:
            hint = joined(f"first at step {marked[name].index(i)}", hint)
        measured = *judged[i][:3], rung, hint, None
        return Layer(name, "", *measured, *values.where(i))

    return [layer(name, i) for name, i in worst.items()]


def _marked(program: Program, theirs: Arrays) -> dict[str, tuple[int, ...]]:
    """Returns the numbers of the values of each layer, by name."""
    reference_names = {"".join(canonical(name)) for name in theirs}
    marked: dict[str, tuple[int, ...]] = {}
    for name, numbers in program.named.items():
        if len(numbers) == 1 or "".join(canonical(name)) in reference_names:
            marked[name] = tuple(numbers)
        else:
            marked |= {f"{name}/{i}": (n,) for i, n in enumerate(numbers)}
    names = leaf_names([keys for keys, _ in program.outputs])
    numbers_ = [(number,) for _, number in program.outputs]
    outputs = list(zip(names, numbers_, strict=True))
    every = {name for name, _ in outputs}
    for name, number in outputs:
        # The first of several calls of a module, unless the reference has one name.
        if f"{name}/1" in every and "".join(canonical(name)) not in reference_names:
            name = f"{name}/0"
        if not _is_result(name):
            marked.setdefault(name, number)
    results = {n: name for name, n in outputs if _is_result(name)}
    results = {n: x for n, x in results.items() if n not in marked.values()}
    single = len(results) == 1 and bool(marked)
    return marked | {"result" if single else name: n for n, name in results.items()}


def _is_result(name: str) -> bool:
    """Returns whether a value has no name but its position in the result."""
    return canonical(name)[:1] == ("result",)


def _arranged(
    program: Program,
    marked: Numbers,
    ours: Arrays,
    theirs: Arrays,
    names: Mapping[str, str],
) -> tuple[dict[str, np.ndarray], str]:
    """Returns the reference in the order of axes here, and that order in words."""

    def arrange(rules: Sequence[layouts.Layout]) -> dict[str, np.ndarray]:
        pairs = zip(theirs.items(), rules, strict=True)
        return {name: rule.arrange(r, ours[name].shape) for (name, r), rule in pairs}

    def measure(rules: Sequence[layouts.Layout]) -> np.ndarray:
        there = arrange(rules)
        types, by_number = program.types, _split(there, marked)
        cast = {i: jax.numpy.asarray(x, types[i].dtype) for i, x in by_number.items()}
        alone = _stacked(program.alone(cast, program.arrays), marked)
        return np.array([layouts.distance(alone[n], there[n]) for n in there])

    for name, r in theirs.items():
        if not layouts.fitting(r, shape := ours[name].shape):
            raise NoiseError(
                f"{name} has the shape {shape}, and {names[name]} of the reference "
                f"{r.shape}: expected the same, up to the order of axes; were both "
                "given the same arguments?"
            )
    rules = layouts.find([(r, ours[n].shape) for n, r in theirs.items()], measure)
    moved = dict.fromkeys(str(rule) for rule in rules if not rule.is_plain)
    return arrange(rules), "; ".join(moved) or "the same here and there"
