"""How often the tools of `noise` are right: the suite `accuracy` of benchmark.py.

    python -m benchmarks.accuracy                        everything; half an hour
    python -m benchmarks.accuracy tolerance invariance   what is named

prints a JSON object for each. Recordings of another version of JAX, whose Python
`OTHER` is, are compared by

    OTHER -m benchmarks.accuracy --record=DIR
    python -m benchmarks.accuracy first_difference --recordings=DIR

Programs are those of `noise_programs`, and of `planted` with a line to find.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import planted
from benchmarks.noise_programs import (
    HELD_OUT,
    LATER,
    PRODUCTS,
    SEEN,
    SUMS,
    mlp,
    normal,
    wide,
)
from prednet_jax import noise
from prednet_jax.noise.questions import runs
from prednet_jax.noise.questions.exact import exact
from prednet_jax.noise.questions.explain import NEARER, ladder, place
from prednet_jax.noise.questions.first_difference import NOISE, against
from prednet_jax.noise.questions.recording import Recording, Watch
from prednet_jax.noise.questions.runs import Call

FRESH = 10_000
FAILURES = (1e-2, 1e-3)
NOISES = (
    "reduction_order",
    "reduction_order:granularity=element",
    "reduction_order+ulp",
)
BOTH = "reduction_order+stochastic_rounding"
FLOAT32 = 24 * math.log10(2)

# How many cases there were, and those that were wrong.
Score = dict[str, Any]


def digits_errors(name: str) -> list[float]:
    """Mean absolute error of the digits of each leaf, against float64.

    Errors below one rounding are cut, as digits are.
    """
    fn, args = HELD_OUT[name]()
    found = noise.digits(fn, noise.parse(BOTH))(jax.random.key(0), *args)
    computed = jax.jit(fn)(*args)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        exact = fn(*wide(args))
    errors = []
    for one, x, truth in zip(
        *map(jax.tree.leaves, (found, computed, exact)), strict=True
    ):
        truth = np.asarray(truth)
        assert truth.dtype == np.float64
        with np.errstate(divide="ignore"):
            real = -np.log10(np.abs(np.asarray(x, np.float64) - truth) / np.abs(truth))
        errors.append(float(np.mean(np.abs(one - np.clip(real, 0, FLOAT32)))))
    return errors


def failure_rates(
    name: str, text: str, seeds: Iterable[int]
) -> list[dict[str, str | float]]:
    """How often fresh runs of a program are outside its tolerance.

    The tolerance of each of `seeds` is tried on the same `FRESH` runs, against the
    function compiled and not. One row per probability asked for, with `excess`: by how
    many times the smallest tolerance exceeds the furthest run (0: no run differs).
    """
    fn, args = (HELD_OUT | LATER)[name]()
    spec = noise.parse(text)
    noisy = noise.inject(fn, spec)
    keys = jax.random.split(jax.random.key(12345), FRESH)
    runs = jax.jit(lambda k: jax.lax.map(lambda k: noisy(k, *args), k, batch_size=100))
    drawn = [np.asarray(x) for x in jax.tree.leaves(runs(keys))]
    plain = [jax.tree.leaves(f(*args)) for f in (fn, jax.jit(fn))]
    rows: list[dict[str, str | float]] = []
    for failure in FAILURES:
        measure = noise.tolerance(fn, spec, failure=failure)
        rates, excess = [], [0.0]
        for seed in seeds:
            found = jax.tree.leaves(measure(jax.random.key(seed), *args))
            assert not any(one.extrapolated for one in found)
            for expected in plain:
                for x, y, one in zip(drawn, expected, found, strict=True):
                    y = np.asarray(y)
                    allowed = one.atol + one.rtol * np.abs(y)
                    far = np.abs(x - y)
                    outside = (far > allowed).reshape(FRESH, -1).any(1)
                    rates.append(float(outside.mean()))
                    if far.any():
                        ratios = far / np.where(allowed > 0, allowed, 1)
                        excess.append(float(1 / ratios.max()))
        rows.append(
            {
                "program": name,
                "noise": text,
                "failure": failure,
                "worst": max(rates),
                "mean": float(np.mean(rates)),
                "excess": max(excess),
            }
        )
    return rows


def _low(a):
    return a.astype(jnp.bfloat16).astype(jnp.float32)


# Kernels in the place of `noise_programs.mlp`, and whether they are right.
KERNELS: dict[str, tuple[Callable, bool]] = {
    "a dropped term": (lambda x, w, v: jnp.tanh(x[:, :-1] @ w[:-1]) @ v, False),
    "operands in bfloat16": (
        lambda x, w, v: _low(jnp.tanh(_low(x) @ _low(w))) @ _low(v),
        False,
    ),
    "another order": (lambda x, w, v: jnp.tanh(x[:, ::-1] @ w[::-1]) @ v, True),
}


def kernels_caught() -> dict[str, bool]:
    """Which of `KERNELS` are outside of the tolerance."""
    fn, args = mlp()
    reference = noise.noise_reference(fn, *args)

    def caught(kernel: Callable) -> bool:
        try:
            reference.assert_close(jax.jit(kernel)(*args))
        except AssertionError:
            return True
        return False

    return {name: caught(kernel) for name, (kernel, _) in KERNELS.items()}


_ORDERS = ("reduction_order", "reduction_order:granularity=element,partials=12")


def cases(name: str, fn: Callable, args: Sequence[Any]) -> Iterator[tuple]:
    """(rung, a, b): ten for programs with products, of which six for the others."""

    def noisy(text: str, seed: int) -> Any:
        return noise.inject(fn, noise.parse(text))(jax.random.key(seed), *args)

    plain = jax.jit(fn)(*args)
    yield "order", noisy(_ORDERS[0], 1), plain
    yield "order", noisy(_ORDERS[1], 2), noisy(_ORDERS[1], 3)
    yield "rounding", plain, noisy("ulp", 4)
    yield "rounding", noisy("stochastic_rounding", 5), noisy("stochastic_rounding", 6)
    yield "beyond", fn(*_without_a_column(args)), plain
    yield "beyond", jax.tree.map(lambda x: x * np.float32(1.01), plain), plain
    if name in PRODUCTS:
        for format in ("tf32", "bf16"):
            yield format, noisy(format, 7), plain
            # On another device, sums have another order too.
            yield format, noisy(f"{format}+reduction_order", 8), noisy(_ORDERS[0], 9)


def _without_a_column(args: Sequence[Any]) -> Sequence[Any]:
    """The first argument with a zero in the place of its last column."""
    first, *rest = args
    if isinstance(first, list | tuple):
        dropped = [w.at[..., -1].set(0) for w in first]
        return type(first)(dropped), *rest
    return first.at[..., -1].set(0), *rest


def explained(names: Iterable[str]) -> Score:
    """How many cases there are, and those named wrongly: program, truth, answer.

    A leaf counts as right where it is named so, or by a rung whose range overlaps, or
    where the noise left it as it was.
    """
    total, wrong = 0, []
    for name in names:
        fn, args = (SEEN | HELD_OUT)[name]()
        call = Call(fn, args, {})
        measured = ladder(call, jax.random.key(4), draws=8)
        for rung, a, b in cases(name, fn, args):
            total += 1
            leaves = place(measured, a, b).leaves
            if not all(
                rung in (leaf.rung, *leaf.plausible) or leaf.rung == "identical"
                for leaf in leaves
            ):
                wrong.append((name, rung, " ".join(leaf.rung for leaf in leaves)))
    return {"cases": total, "wrong": wrong}


def line_found(program: Callable) -> bool:
    """Whether `localize` names the marked line, and that alone, as the culprit."""
    search = noise.localize(program, noise.UlpPerturbation())
    report = search(jax.random.key(1), planted.X)
    sources = {culprit.source for culprit in report.sets[0]} if report.sets else set()
    return (
        len(sources) == 1
        and sources.pop().startswith(planted.marked(program))
        and report.rest < report.effect
    )


def nearer(names: Iterable[str] = tuple(LATER)) -> Score:
    """Pairs, and those where `closer` is not what float64 says: program, both names.

    The oracle calls the function again on wide arguments.
    """
    total, wrong = 0, []
    for name in names:
        fn, args = LATER[name]()
        plain = jax.jit(fn)(*args)
        call = Call(fn, args, {})
        rungs = ladder(call, jax.random.key(7), draws=2)
        reference = exact(call, jax.random.key(7))

        def noisy(text: str, seed: int, fn: Any = fn, args: Any = args) -> Any:
            return noise.inject(fn, noise.parse(text))(jax.random.key(seed), *args)

        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            truth = np.asarray(fn(*wide(args)))
        for a, b in (
            (plain, noisy("bf16", 1)),
            (noisy("tf32", 2), plain),
            (noisy("ulp:max_ulps=8", 3), noisy("ulp", 4)),
            (noisy("reduction_order", 5), noisy("reduction_order+ulp", 6)),
            (plain, plain * np.float32(1 + 1e-6)),
        ):
            far = [
                float(np.linalg.norm(np.asarray(v, np.float64) - truth)) for v in (a, b)
            ]
            expected = "a" if far[0] < far[1] else "b"
            if max(far) < NEARER * min(far):
                expected = "neither"
            report = place(rungs, a, b, reference)
            total += 1
            if report.closer != expected:
                wrong.append((name, expected, str(report.closer)))
    return {"cases": total, "wrong": wrong}


def accuracies(draws: int = 16, fresh: int = 400) -> dict[str, float]:
    """How often a fresh run's accuracy is within what `decisions` says; and wanted.

    Answers are the larger of two sums of a result that differ by no more than their
    noise; four evaluations per program with keys of their own.
    """
    within = []
    spec = noise.ReductionOrder(granularity="element")
    for program in LATER.values():
        fn, (_, w) = program()

        def answers(x: Any, w: Any, fn: Any = fn) -> Any:
            y = fn(x, w)
            tie = y.sum(1) - y[:, ::-1].sum(1)
            return (tie > 0).astype(jnp.int32)

        x = normal(903, 64, 64)
        labels = np.ones(64, int)
        noisy = noise.inject(answers, spec)
        keys = jax.random.split(jax.random.key(8), fresh)
        found = np.stack([np.asarray(noisy(key, x, w)) for key in keys])
        for seed in range(4):
            search = noise.decisions(answers, spec, draws=draws, labels=labels)
            evaluation = search(jax.random.key(seed), x, w).evaluation
            assert evaluation is not None
            far = np.abs(np.mean(found == 1, 1) - evaluation.accuracy)
            within.append(np.mean(far <= evaluation.moved + 1e-9))
    return {"within": float(np.mean(within)), "wanted": draws / (draws + 1)}


# Other than the noise by which `first_difference` judges.
OTHER = noise.compose(
    noise.ReductionOrder(partials=7, granularity="tile", shortest=1),
    noise.StochasticRounding(),
)
RUNS, FAULTY_RUNS = 20, 5


def _file(folder: Path, program: Callable, seed: int) -> Path:
    return folder / f"{program.__name__}_{seed}.npz"


def write_recordings(folder: Path) -> None:
    """Records the programs without a fault."""
    machine = f"jax {jax.__version__}"
    for program in planted.FAULTY:
        watch = Watch(partial(program, fault=""), planted.arguments(0), {})
        for seed in range(RUNS):
            values = watch.run(jax.random.key(0), planted.arguments(seed))
            made = Recording(program.__name__, machine, values)
            made.save(_file(folder, program, seed))


def first_lines(
    programs: Sequence[Callable] = planted.FAULTY[2:], folder: Path | None = None
) -> dict[str, Score]:
    """Runs without a fault that are no alarm, and faults whose line comes first.

    The other run is in another order, or a recording of `write_recordings`.
    """
    scores: dict[str, Score] = {
        kind: {"cases": 0, "wrong": []} for kind in ("clean", "faulty")
    }
    judged_by = runs.reaching(NOISE)
    for program in programs:
        args, clear = planted.arguments(0), partial(program, fault="")
        good, other = Watch(clear, args, {}), Watch(clear, args, {}, OTHER)
        for fault in ("", *planted.FAULTS):
            bad = partial(program, fault=fault)
            here = Watch(bad, args, {}) if fault else good
            noisy = Watch(bad, args, {}, judged_by)
            score = scores["faulty" if fault else "clean"]
            for seed in range(FAULTY_RUNS if fault else RUNS):
                args, key = planted.arguments(seed), jax.random.key(seed)
                if folder is not None:
                    recording = noise.load_recording(_file(folder, program, seed))
                else:
                    there = (good if fault else other).run(key, args)
                    recording = Recording(program.__name__, "", there)
                drawn = (noisy.run(k, args) for k in jax.random.split(key, 8))
                found = against(recording, here.run(key, args), drawn)
                first = found[0].source if found else ""
                line = planted.marked(program, fault) if fault else ""
                score["cases"] += 1
                if not (first.startswith(line) if fault else not found):
                    score["wrong"].append((program.__name__, fault, seed, first))
    return scores


def by_hand(fn: Callable, x: Any) -> dict[str, np.ndarray]:
    """A function of 8 rows called in each way that `invariance` knows."""
    compiled = jax.jit(fn)

    def of_row(row: Any) -> Any:
        return fn(row[None])[0]

    def in_chunks(n: int) -> Any:
        return np.concatenate([compiled(x[i : i + n]) for i in range(0, 8, n)])

    padded = jnp.concatenate([x, jnp.zeros_like(x)])
    found = {
        "not compiled": fn(x),
        "all arguments as constants": jax.jit(lambda: fn(x))(),
        "one row at a time": in_chunks(1),
        "2 rows at a time": in_chunks(2),
        "4 rows at a time": in_chunks(4),
        "padded to 16 rows": compiled(padded)[:8],
        "rows in reverse": compiled(x[::-1])[::-1],
        "vmap over rows": jax.jit(jax.vmap(of_row))(x),
        "loop over rows": jax.jit(partial(lax.map, of_row))(x),
    }
    return {name: np.asarray(result) for name, result in found.items()}


# In which ways of calling a fault of `planted.ROW_FAULTS` acts.
ALONE = ("one row at a time", "vmap over rows", "loop over rows")
OTHER_SIZES = (*ALONE, "2 rows at a time", "4 rows at a time", "padded to 16 rows")


def calls_compared(
    programs: Sequence[Callable] = planted.ROWS,
) -> dict[str, Score]:
    """What `invariance` says of each variant, against calls by hand and the fault.

    `bits`: which are the same. `rungs`: `beyond` where a fault moves the result by
    more than 1e-4, and nowhere else. `lines`: the first, where the fault acts.
    """
    scores: dict[str, Score] = {
        kind: {"cases": 0, "wrong": []} for kind in ("bits", "rungs", "lines")
    }
    for program in programs:
        for fault in ("", *planted.ROW_FAULTS):
            fn, x = partial(program, fault=fault), planted.BATCH
            expected, truth = np.asarray(jax.jit(fn)(x)), by_hand(fn, x)
            mixes = fault in ("mixed", "counted")
            for v in noise.invariance(fn)(x).variants:
                acts = fault and v.name in (OTHER_SIZES if mixes else ALONE)
                same = truth[v.name].tobytes() == expected.tobytes()
                # A norm may undo a factor.
                far = runs.rms(truth[v.name] - expected) > 1e-4 * runs.rms(expected)
                checks = {
                    "bits": v.same_bits == same,
                    "rungs": (v.rung == "beyond") == far,
                }
                if acts and not same:
                    line = planted.marked(program, fault)
                    checks["lines"] = v.source.startswith(line)
                for kind, right in checks.items():
                    scores[kind]["cases"] += 1
                    if not right:
                        case = program.__name__, fault, v.name, v.rung, v.source
                        scores[kind]["wrong"].append(case)
    return scores


def all_rates() -> list[dict[str, str | float]]:
    """`failure_rates` of the programs that nobody looked at, under each noise."""
    return [
        row
        for name in LATER
        for text in NOISES
        for row in failure_rates(name, text, range(4))
    ]


def lines_found() -> Score:
    """The lines of `planted.ILL_CONDITIONED` that `localize` finds."""
    programs = planted.ILL_CONDITIONED
    missed = [p.__name__ for p in programs if not line_found(p)]
    return {"cases": len(programs), "wrong": missed}


MEASURES: dict[str, Callable[[], Any]] = {
    "digits": lambda: {name: digits_errors(name) for name in HELD_OUT},
    "tolerance": all_rates,
    "kernels": kernels_caught,
    "explain": lambda: explained([*PRODUCTS, *SUMS]),
    "closer": nearer,
    "localize": lines_found,
    "decisions": accuracies,
    "first_difference": first_lines,
    "invariance": calls_compared,
}


def accuracy() -> dict[str, Any]:
    """Tries every tool on every program."""
    found = {"suite": "accuracy", "jax": jax.__version__}
    return found | {name: measure() for name, measure in MEASURES.items()}


def main() -> None:
    """Measures what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*MEASURES, []])
    parser.add_argument("--record", type=Path, help="folder to write recordings to")
    parser.add_argument("--recordings", type=Path, help="folder to compare with")
    options = parser.parse_args()
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        write_recordings(options.record)
        return
    for name in options.names or MEASURES:
        measure = MEASURES[name]
        if name == "first_difference" and options.recordings:
            measure = partial(first_lines, folder=options.recordings)
        print(json.dumps({name: measure()}), flush=True)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
