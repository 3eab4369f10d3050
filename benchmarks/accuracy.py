"""The suite `accuracy` of benchmark.py: how often the tools of `noise` are right.

Digits against float64, tolerances against 10,000 fresh runs, wrong kernels against
tolerances, constructed differences against `explain`, planted lines against `localize`.
Constants of the tools were chosen with `noise_programs.SEEN` in view; the programs of
`HELD_OUT` were not looked at before.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import planted
from benchmarks.noise_programs import HELD_OUT, PRODUCTS, SEEN, SUMS, mlp, wide
from prednet_jax import noise
from prednet_jax.noise.questions.explain import ladder, place
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


def accuracy() -> dict[str, Any]:
    """Tries every tool on every program; a quarter of an hour."""
    digits = {name: digits_errors(name) for name in HELD_OUT}
    print("digits", digits, flush=True)
    rates = []
    for name in HELD_OUT:
        for text in NOISES:
            rates += failure_rates(name, text, range(4))
        print("tolerance", name, [row["worst"] for row in rates[-6:]], flush=True)
    total, wrong = explained([*PRODUCTS, *SUMS])
    print("explain", total, wrong, flush=True)
    missed = [p.__name__ for p in planted.PROGRAMS if not line_found(p)]
    return {
        "suite": "accuracy",
        "jax": jax.__version__,
        "digits": digits,
        "tolerance": rates,
        "kernels": kernels_caught(),
        "explain": {"cases": total, "wrong": [list(case) for case in wrong]},
        "localize": {"cases": len(planted.PROGRAMS), "wrong": missed},
    }


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
    """How often fresh runs of a held-out program are outside its tolerance.

    The tolerance of each of `seeds` is tried on the same `FRESH` runs, against the
    function compiled and not. One row per probability asked for, with `excess`: by how
    many times the smallest tolerance exceeds the furthest run (0: no run differs).
    """
    fn, args = HELD_OUT[name]()
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


def explained(names: Iterable[str]) -> tuple[int, list[tuple[str, str, str]]]:
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
    return total, wrong


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
