"""How often errors in small parts of a bfloat16 array are found.

    python -m tests.accuracy.small_parts            # all, half an hour
    python -m tests.accuracy.small_parts dense scan # some of the programs
    python -m tests.accuracy.small_parts h200       # the constant of `own_ratios`

A part of a result is smaller than the rest, by a factor of 10 to 1e5, and wrong by 20
to 100 %. A result with its sums in another order is right. "silently" stands for a
report that does not say that elements are not resolved. `h200` prints the largest
quotient of `own_ratios` in the values of programs without a fault, recorded on an H200.
"""

import argparse
import collections
import functools
import itertools
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import unpack_archive

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

from prednet_jax import noise
from prednet_jax.noise.questions import elements
from tests.accuracy import gpu_tools

SIZES = (32, 64), (8, 16)
SMALLER, ERRORS = (10.0, 1e3, 1e5), (0.2, 0.5, 1.0)
# One of so many inputs is tried.
EVERY = 12


def attention(x: Array, w: Array) -> Array:
    return jax.nn.softmax(x @ x.T / jnp.asarray(4, x.dtype)) @ x @ w


def gradient(x: Array, w: Array) -> Array:
    return jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w) ** 2))(x) @ w


def recurrent(x: Array, w: Array) -> Array:
    def step(h: Array, _: None) -> tuple[Array, None]:
        return jnp.tanh(h @ w[:, :16] + x), None

    return lax.scan(step, x, None, length=3)[0] @ w


def squares(x: Array, w: Array) -> Array:
    return (x @ w - jnp.mean(x @ w)) ** 2


# Functions of x [n, 16] and w [16, m], with a result [n, m].
PROGRAMS: dict[str, Callable[[Array, Array], Array]] = {
    "dense": lambda x, w: x @ w,
    "tanh": lambda x, w: jnp.tanh(x @ w),
    "layers": lambda x, w: jnp.sin(x @ w) @ w.T @ w,
    "attention": attention,
    "gradient": gradient,
    "recurrent": recurrent,
    "softmax": lambda x, w: jax.nn.softmax(x @ w, 0),
    "exponential": lambda x, w: jnp.exp((x @ w) * jnp.asarray(0.3, x.dtype)),
    "squares": squares,
}
PARTS = {
    "half": np.s_[1::2],
    "row": np.s_[3],
    "column": np.s_[:, 5],
    "block": np.s_[:2, :4],
    "columns": np.s_[:, ::2],
    "grid": np.s_[::3, 1::4],
    "element": np.s_[4, 7],
}


def inputs(names: list[str]) -> Iterator[tuple]:
    """Yields the program, size, part, factor and error of each input that is tried."""
    for one in itertools.product(names, SIZES, PARTS, SMALLER, ERRORS):
        if zlib.crc32(str(one).encode()) % EVERY == 0:
            yield one


def missed(
    name: str, size: tuple[int, int], part: str, smaller: float, error: float
) -> Iterator[str]:
    """Yields the tools that are wrong about one input."""
    random = np.random.default_rng(zlib.crc32(f"{name}{size}{part}{error}".encode()))
    x, w = (
        jnp.asarray(random.normal(size=shape) * scale, jnp.bfloat16)
        for shape, scale in (((size[0], 16), 1), ((16, size[1]), 0.25))
    )
    small, wrong = np.ones(size), np.ones(size)
    small[PARTS[part]] /= smaller
    wrong[PARTS[part]] += error * random.choice([-1, 1])
    scale, factor = (jnp.asarray(v, jnp.bfloat16) for v in (small, wrong))

    def right(x: Array, w: Array) -> Array:
        return PROGRAMS[name](x, w) * scale

    def faulty(x: Array, w: Array) -> Array:
        return right(x, w) * factor

    key, result = jax.random.key(1), right(x, w)
    reordered = noise.inject(right, noise.parse("reduction_order"))(key, x, w)
    reference = noise.noise_reference(right, x, w)
    for y, is_right in ((faulty(x, w), False), (reordered, True)):
        cause = noise.explain(right, result, y)(key, x, w)
        yield from _judged("explain", cause, cause.rung == "beyond", is_right)
        try:
            reference.assert_close(y)
            refused = False
        except AssertionError:
            refused = True
        if refused == is_right:
            yield "assert_close" + " (alarm)" * is_right
    recording = noise.record(right)(x, w)
    for fn, is_right in ((faulty, False), (right, True)):
        found = noise.first_difference(fn, recording)(key, x, w)
        yield from _judged("first_difference", found, bool(found), is_right)


def _judged(tool: str, report: object, found: bool, is_right: bool) -> Iterator[str]:
    """Yields the tool's name if it is wrong, and again if it is so silently."""
    if found == is_right:
        yield tool + " (alarm)" * is_right
    said = "not resolved" in str(report) or "may not be seen" in str(report)
    if not (found or is_right or said):
        yield tool + " (silently)"
    if said and is_right:
        yield tool + " (remark on a right result)"


def quotients() -> Iterator[tuple[str, float, float]]:
    """Yields the largest quotients in results and values of each program of the H200.

    The first is of as many elements as `own_ratios` asks for, the second of any.
    """
    outputs = np.load(gpu_tools.H200 / "outputs.npz")
    own_ratios, key = elements.own_ratios, jax.random.key(4)
    seen: list[float] = []

    @functools.wraps(own_ratios)
    def watched(*args: np.ndarray) -> np.ndarray:
        found = own_ratios(*args)
        seen.append(float(np.max(found, initial=0)))
        return found

    elements.own_ratios = watched
    elements._OWN_LIMIT = elements._FEWER_LIMIT = 1.0
    with tempfile.TemporaryDirectory() as folder:
        unpack_archive(gpu_tools.H200 / "recordings.tar.xz", folder, filter="data")
        for name, make in sorted(gpu_tools.PROGRAMS.items()):
            fn, args = make()
            here = jax.device_get(jax.jit(fn)(*args))
            tree = jax.tree.structure(here)
            there = tree.unflatten(
                outputs[f"{name}/highest/{i}"] for i in range(tree.num_leaves)
            )
            recording = noise.load_recording(Path(folder) / f"{name}_highest.npz")
            largest = []
            for share, few in ((0.05, 3), (0.0, 1)):
                elements._SHARE, elements._SEVERAL = share, few
                seen.clear()
                noise.explain(fn, there, here, draws=8)(key, *args)
                noise.first_difference(fn, recording)(key, *args)
                largest.append(max(seen, default=0.0))
            yield name, *largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names or list(PROGRAMS)
    if names == ["h200"]:
        for row in quotients():
            print(json.dumps(row), flush=True)
        return
    count, wrong = 0, collections.defaultdict(list)
    for one in inputs(names):
        count += 1
        for tool in missed(*one):
            wrong[tool].append(one)
            print(json.dumps([tool, *one]), flush=True)
    totals = {tool: len(found) for tool, found in wrong.items()}
    print(json.dumps({"inputs": count, "wrong": totals}))


if __name__ == "__main__":
    main()
