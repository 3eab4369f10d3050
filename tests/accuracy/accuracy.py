"""How often the tools of `noise` are right.

docs/noise/accuracy*.md have the commands and what they found. Programs are those of
`noise_programs`, and of `planted` with a line to find.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from prednet_jax import noise
from prednet_jax.noise.leaves import rms
from prednet_jax.noise.questions.explain import CLOSER_FACTOR, classify
from prednet_jax.noise.questions.first_difference import against
from prednet_jax.noise.questions.recorder import Watch
from prednet_jax.noise.questions.recording import Recording
from prednet_jax.noise.questions.reference import NoiseReference
from prednet_jax.noise.questions.sampling import BoundCall, with_routines
from prednet_jax.noise.questions.widening import exact
from tests.accuracy import gpu_tools, narrow, planted
from tests.accuracy import noise_programs as programs
from tests.accuracy.noise_programs import (
    HELD_OUT,
    LATER,
    PRODUCTS,
    SEEN,
    in_float64,
    right_digits,
)

FRESH = 10_000
FAILURES = (1e-2, 1e-3)
NOISES = (
    "reduction_order",
    "reduction_order:granularity=element",
    "reduction_order+ulp",
)


class Score(dict):
    """How many cases there were, and those that were wrong."""

    def __init__(self) -> None:
        super().__init__(cases=0, wrong=[])

    def add(self, right: bool, *case: Any) -> None:
        """Counts a case, of which something is told if it is wrong."""
        self["cases"] += 1
        self["wrong"] += [] if right else [case]


def noisy(fn: Callable, args: Sequence[Any], text: str, seed: int) -> Any:
    """A result of a function under noise."""
    return noise.inject(fn, noise.parse(text))(jax.random.key(seed), *args)


def digits_errors(name: str) -> list[float]:
    """Mean absolute error of the digits of each leaf, against float64."""
    fn, args = HELD_OUT[name]()
    digits = noise.digits(fn)(jax.random.key(0), *args)
    right = right_digits(jax.jit(fn)(*args), in_float64(fn, args))
    pairs = zip(jax.tree.leaves(digits), right, strict=True)
    return [float(np.mean(np.abs(estimate - real))) for estimate, real in pairs]


def failure_rates(
    name: str, text: str, seeds: Iterable[int]
) -> Iterator[dict[str, str | float]]:
    """How often fresh runs of a program are outside its tolerance.

    The tolerance of each of `seeds` is tried on the same `FRESH` runs, against the
    function compiled and not. One row per probability asked for, with `excess`: by how
    many times the smallest tolerance exceeds the furthest run (0: no run differs).
    """
    fn, args = (HELD_OUT | LATER)[name]()
    spec = noise.parse(text)
    noisy = noise.inject(fn, spec)
    keys = jax.random.split(jax.random.key(12345), FRESH)
    every = jax.jit(lambda k: lax.map(lambda k: noisy(k, *args), k, batch_size=100))
    drawn = [np.asarray(x) for x in jax.tree.leaves(every(keys))]
    plain = [jax.tree.leaves(f(*args)) for f in (fn, jax.jit(fn))]

    for failure in FAILURES:
        measure = noise.tolerance(fn, spec, failure=failure)
        rates, excess = [], [0.0]
        for seed in seeds:
            tolerances = jax.tree.leaves(measure(jax.random.key(seed), *args))
            assert not any(tolerance.extrapolated for tolerance in tolerances)
            for expected in plain:
                for x, y, tolerance in zip(drawn, expected, tolerances, strict=True):
                    allowed = tolerance.atol + tolerance.rtol * np.abs(y)
                    far = np.abs(x - np.asarray(y))
                    outside = (far > allowed).reshape(FRESH, -1).any(1)
                    rates.append(float(outside.mean()))
                    if far.any():
                        ratios = far / np.where(allowed > 0, allowed, 1)
                        excess.append(float(1 / ratios.max()))
        yield {
            "program": name,
            "noise": text,
            "failure": failure,
            "worst": max(rates),
            "mean": float(np.mean(rates)),
            "excess": max(excess),
        }


def _low(a):
    return a.astype(jnp.bfloat16).astype(jnp.float32)


# Kernels in the place of `noise_programs.mlp`; but for the last they are wrong.
KERNELS: dict[str, Callable] = {
    "a dropped term": lambda x, w, v: jnp.tanh(x[:, :-1] @ w[:-1]) @ v,
    "operands in bfloat16": lambda x, w, v: _low(jnp.tanh(_low(x) @ _low(w))) @ _low(v),
    "another order": lambda x, w, v: jnp.tanh(x[:, ::-1] @ w[::-1]) @ v,
}


def kernels_caught() -> dict[str, bool]:
    """Which of `KERNELS` are outside of the tolerance."""
    fn, args = programs.mlp()
    reference = noise.noise_reference(fn, *args)

    def caught(kernel: Callable) -> bool:
        try:
            reference.assert_close(jax.jit(kernel)(*args))
        except AssertionError:
            return True
        return False

    return {name: caught(kernel) for name, kernel in KERNELS.items()}


_ORDERS = ("reduction_order", "reduction_order:granularity=element,partials=12")


def cases(name: str, fn: Callable, args: Sequence[Any]) -> Iterator[tuple]:
    """(rung, a, b): ten for programs with products, of which six for the others."""
    plain, drawn = jax.jit(fn)(*args), partial(noisy, fn, args)
    yield "order", drawn(_ORDERS[0], 1), plain
    yield "order", drawn(_ORDERS[1], 2), drawn(_ORDERS[1], 3)
    yield "rounding", plain, drawn("ulp", 4)
    yield "rounding", drawn("stochastic_rounding", 5), drawn("stochastic_rounding", 6)
    cut = jax.tree.map(lambda x: x.at[..., -1].set(0), args[0])  # A column is missing.
    yield "beyond", fn(cut, *args[1:]), plain
    yield "beyond", jax.tree.map(lambda x: x * np.float32(1.01), plain), plain
    if name in PRODUCTS:
        for format in ("tf32", "bf16"):
            yield format, drawn(format, 7), plain
            # On another device, sums have another order too.
            yield format, drawn(f"{format}+reduction_order", 8), drawn(_ORDERS[0], 9)


def explained(names: Iterable[str]) -> Score:
    """How many cases there are, and those named wrongly: program, truth, answer.

    A leaf counts as right where it is named so, or by a rung whose range overlaps, or
    where the noise left it as it was.
    """
    score = Score()
    for name in names:
        fn, args = (SEEN | HELD_OUT)[name]()
        measured = NoiseReference(BoundCall(fn, args, {}), jax.random.key(4), draws=8)
        for rung, a, b in cases(name, fn, args):
            leaves = classify(measured, a, b).leaves
            named = [{x.rung, *x.plausible} & {rung, "identical"} for x in leaves]
            score.add(all(named), name, rung, " ".join(x.rung for x in leaves))
    return score


def lines_found() -> Score:
    """The programs of which `localize` names the planted line, and that alone."""
    score = Score()
    for program in planted.ILL_CONDITIONED:
        search = noise.localize(program, noise.UlpPerturbation())
        report = search(jax.random.key(1), planted.X)
        sources = {culprit.source for found in report.sets[:1] for culprit in found}
        alone = [x.startswith(planted.marked(program)) for x in sources] == [True]
        score.add(alone and report.rest < report.effect, program.__name__)
    return score


def nearer(names: Iterable[str] = tuple(LATER)) -> Score:
    """Pairs, and those where `closer` is not what float64 says: program, both names."""
    score, key = Score(), jax.random.key(7)
    for name in names:
        fn, args = LATER[name]()
        call, drawn = BoundCall(fn, args, {}), partial(noisy, fn, args)
        rungs, reference = NoiseReference(call, key, draws=2), exact(call, key)
        plain, truth = jax.jit(fn)(*args), in_float64(fn, args)
        for a, b in (
            (plain, drawn("bf16", 1)),
            (drawn("tf32", 2), plain),
            (drawn("ulp:max_ulps=8", 3), drawn("ulp", 4)),
            (drawn("reduction_order", 5), drawn("reduction_order+ulp", 6)),
            (plain, plain * np.float32(1 + 1e-6)),
        ):
            far = [np.linalg.norm(np.asarray(x, np.float64) - truth) for x in (a, b)]
            expected = "a" if far[0] < far[1] else "b"
            if max(far) < CLOSER_FACTOR * min(far):
                expected = "neither"
            closer = classify(rungs, a, b, reference).closer
            score.add(closer == expected, name, expected, str(closer))
    return score


def accuracies(draws: int = 16, fresh: int = 400) -> dict[str, float]:
    """How often a fresh run's accuracy is within what `decisions` says; and wanted.

    Four evaluations per program, with keys of their own.
    """
    within = []
    spec = noise.ReductionOrder(granularity="element")
    for program in LATER.values():
        fn, (_, w) = program()

        def answers(x: Any, w: Any, fn: Any = fn) -> Any:
            y = fn(x, w)
            tie = y.sum(1) - y[:, ::-1].sum(1)
            return (tie > 0).astype(jnp.int32)

        x = programs.normal(903, 64, 64)
        labels = np.ones(64, int)
        drawn = noise.inject(answers, spec)
        keys = jax.random.split(jax.random.key(8), fresh)
        given = np.stack([np.asarray(drawn(key, x, w)) for key in keys])
        for seed in range(4):
            search = noise.decisions(answers, spec, draws=draws, labels=labels)
            evaluation = search(jax.random.key(seed), x, w).evaluation
            assert evaluation is not None
            far = np.abs(np.mean(given == 1, 1) - evaluation.accuracy)
            within.append(np.mean(far <= evaluation.moved + 1e-9))
    return {"within": float(np.mean(within)), "wanted": draws / (draws + 1)}


# Other than the noise by which `first_difference` judges.
OTHER = noise.compose(
    noise.ReductionOrder(partials=7, granularity="tile", shortest=1),
    noise.StochasticRounding(),
)
RUNS, FAULTY_RUNS = 20, 5


def recording_path(folder: Path, program: Callable, seed: int, how: str) -> Path:
    """Returns the file of one recording; `how` is "plain" or "noisy"."""
    return folder / f"{program.__name__}_{seed}_{how}.npz"


def record(folder: Path) -> None:
    """Records the programs without a fault, for `first_lines` elsewhere."""
    for program in planted.FAULTY:
        call = BoundCall(partial(program, fault=""), planted.arguments(0), {})
        for how, watch, seeds in (
            ("plain", Watch(call), FAULTY_RUNS),
            ("noisy", Watch(call, OTHER), RUNS),
        ):
            for seed in range(seeds):
                run = watch.run(jax.random.key(seed), planted.arguments(seed))
                recording = Recording(program.__name__, jax.__version__, run)
                recording.save(recording_path(folder, program, seed, how))


def first_lines(recordings: Path | None = None) -> dict[str, Score]:
    """Runs without a fault that are no alarm, and faults whose line comes first.

    The other run is in another order. It is read from `recordings` if this is given.
    """
    scores = {kind: Score() for kind in ("clean", "faulty")}
    judged_by = with_routines(None)
    for program in planted.FAULTY:
        args, clear = planted.arguments(0), partial(program, fault="")
        call = BoundCall(clear, args, {})
        good, other = Watch(call), Watch(call, OTHER)
        for fault in ("", *planted.FAULTS):
            faulty = BoundCall(partial(program, fault=fault), args, {})
            here = Watch(faulty) if fault else good
            judge = Watch(faulty, judged_by)
            score = scores["faulty" if fault else "clean"]
            for seed in range(FAULTY_RUNS if fault else RUNS):
                args, key = planted.arguments(seed), jax.random.key(seed)
                if recordings is None:
                    there = (good if fault else other).run(key, args)
                    recording = Recording(program.__name__, "", there)
                else:
                    how = "plain" if fault else "noisy"
                    path = recording_path(recordings, program, seed, how)
                    recording = noise.load_recording(path)
                drawn = (judge.run(k, args) for k in jax.random.split(key, 8))
                beyond = against(recording, here.run(key, args), drawn)
                first = beyond[0].source if beyond else ""
                line = planted.marked(program, fault) if fault else ""
                right = first.startswith(line) if fault else not beyond
                score.add(right, program.__name__, fault, seed, first)
    return scores


def by_hand(fn: Callable, x: Any) -> dict[str, np.ndarray]:
    """A function of 8 rows called in each way that `invariance` knows."""
    compiled = jax.jit(fn)

    def of_row(row: Any) -> Any:
        return fn(row[None])[0]

    def in_chunks(n: int) -> Any:
        return np.concatenate([compiled(x[i : i + n]) for i in range(0, 8, n)])

    padded = jnp.concatenate([x, jnp.zeros_like(x)])
    results = {
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
    return {name: np.asarray(result) for name, result in results.items()}


# In which ways of calling a fault of `planted.ROW_FAULTS` acts.
ALONE = ("one row at a time", "vmap over rows", "loop over rows")
OTHER_SIZES = (*ALONE, "2 rows at a time", "4 rows at a time", "padded to 16 rows")


def calls_compared(programs: Sequence[Callable] = planted.ROWS) -> dict[str, Score]:
    """What `invariance` says of each variant, against calls by hand and the fault.

    `bits`: which are the same. `rungs`: `beyond` where a fault moves the result by
    more than 1e-4, and nowhere else. `lines`: the one named, where the fault acts.
    """
    scores = {kind: Score() for kind in ("bits", "rungs", "lines")}
    for program in programs:
        for fault in ("", *planted.ROW_FAULTS):
            fn, x = partial(program, fault=fault), planted.BATCH
            expected, truth = np.asarray(jax.jit(fn)(x)), by_hand(fn, x)
            mixes = fault in ("mixed", "counted")
            for v in noise.invariance(fn)(x).variants:
                acts = fault and v.name in (OTHER_SIZES if mixes else ALONE)
                same = truth[v.name].tobytes() == expected.tobytes()
                # A norm may undo a factor.
                far = rms(truth[v.name] - expected) > 1e-4 * rms(expected)
                beyond = v.rung == "beyond"
                checks = {"bits": v.same_bits == same, "rungs": beyond == far}
                if acts and v.source:
                    line = planted.marked(program, fault)
                    checks["lines"] = v.source.startswith(line)
                case = program.__name__, fault, v.name, v.rung, v.source
                for kind, right in checks.items():
                    scores[kind].add(right, *case)
    return scores


MEASURES: dict[str, Callable[[], Any]] = {
    "digits": lambda: {name: digits_errors(name) for name in HELD_OUT},
    "tolerance": lambda: [
        row
        for name, text in itertools.product(LATER, NOISES)
        for row in failure_rates(name, text, range(4))
    ],
    "kernels": kernels_caught,
    "explain": lambda: explained([*PRODUCTS, *programs.SUMS]),
    "h200": lambda: list(gpu_tools.on_h200()),
    "products": lambda: list(narrow.on_device()),
    "rows": lambda: list(narrow.rows()),
    "casts": lambda: list(narrow.with_casts()),
    "closer": nearer,
    "localize": lines_found,
    "decisions": accuracies,
    "first_difference": first_lines,
    "invariance": calls_compared,
}


def main() -> None:
    """Measures what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*MEASURES, []])
    parser.add_argument(
        "--record",
        type=Path,
        metavar="DIR",
        help="only write the recordings of first_difference, for another environment",
    )
    parser.add_argument(
        "--recordings",
        type=Path,
        metavar="DIR",
        help="let first_difference compare with those that --record wrote",
    )
    asked = parser.parse_args()
    if asked.record:
        asked.record.mkdir(parents=True, exist_ok=True)
        record(asked.record)
        return
    measures = MEASURES | {"first_difference": partial(first_lines, asked.recordings)}
    for name in asked.names or measures:
        print(json.dumps({name: measures[name]()}), flush=True)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
