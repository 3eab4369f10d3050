"""JAX's own one-primitive programs, thousands of them, under three noises.

`jax._src.internal_test_util.test_harnesses` comes with JAX's wheel. One program of each
primitive runs in the suite, under the three noises together, which is one compilation
instead of three; all of them under each noise, with the mark `slow`.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import noise

SPECS = (
    noise.ReductionOrder(partials=4, granularity="element", shortest=1),
    noise.MonteCarlo("mca"),
    noise.UlpPerturbation(),
)
WIDE = ("float64", "int64", "uint64", "complex128")
# Of the largest number of a result, far above what noise does, far below an error.
TOLERANCE = {"float16": 0.05, "bfloat16": 0.3, "float32": 1e-2, "float64": 1e-6}
# What they compute jumps where an operand moves by its last bit: signs and multiples
# (rem, eigenvectors), rejection (random numbers), sums of chosen kind.
JUMPS = ("rem", "eig", "svd", "random", "schur", "lu", "tridiagonal", "floor", "approx")


@pytest.fixture(scope="module")
def harnesses():
    """By primitive, those that run on a CPU."""
    # Its flags are absl's: imported here, where nothing else parses any.
    module = pytest.importorskip("jax._src.internal_test_util.test_harnesses")
    runnable = [h for h in module.all_harnesses if h.filter("cpu")]
    runnable.sort(key=lambda h: h.group_name)
    return {
        name: list(group)
        for name, group in itertools.groupby(runnable, lambda h: h.group_name)
    }


def check(harness, specs):
    """Runs one program with and without noise; raises where they disagree."""
    with (
        # Types come as classes, as NumPy's and as those of keys.
        jax.enable_x64(any(name in str(harness.dtype) for name in WIDE)),
        jax.numpy_dtype_promotion("standard"),
    ):
        args = harness.dyn_args_maker(np.random.RandomState(0))
        arrays = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in args]
        key = jax.random.key(0, impl="threefry2x32")
        noisy = [noise.inject(harness.dyn_fun, spec) for spec in specs]
        clean, *found = jax.jit(
            lambda key, *args: [harness.dyn_fun(*args), *(f(key, *args) for f in noisy)]
        )(key, *arrays)
        jumps = any(part in harness.group_name for part in JUMPS)
        for result in found:
            assert jax.tree.structure(result) == jax.tree.structure(clean)
            for x, wanted in zip(*map(jax.tree.leaves, (result, clean)), strict=True):
                assert (x.shape, x.dtype) == (wanted.shape, wanted.dtype)
                if not jumps:
                    compare(x, wanted)


def compare(x, wanted):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        np.testing.assert_array_equal(x, wanted)
        return
    name = jnp.finfo(x.dtype).dtype.name
    wide = np.complex128 if jnp.iscomplexobj(x) else np.float64
    x, wanted = np.asarray(x).astype(wide), np.asarray(wanted).astype(wide)
    finite = np.isfinite(wanted)
    largest = np.abs(wanted[finite]).max(initial=0.0)
    near = np.abs(x[finite] - wanted[finite]) <= TOLERANCE[name] * largest + 1e-30
    assert near.all(), (x[finite][~near], wanted[finite][~near])


def failures(harnesses, specs):
    found = {}
    for i, harness in enumerate(harnesses):
        try:
            check(harness, specs)
        except Exception as error:
            found[harness.fullname] = f"{type(error).__name__}: {error}"[:300]
        if i % 50 == 49:
            jax.clear_caches()
    return found


@pytest.mark.parametrize("part", range(4))
def test_one_program_of_each_primitive(harnesses, part):
    chosen = [group[0] for group in harnesses.values()]
    assert len(chosen) > 120
    assert not failures(chosen[part::4], [noise.compose(*SPECS)])


@pytest.mark.slow
def test_all_jax_programs(harnesses):
    chosen = [h for group in harnesses.values() for h in group]
    assert len(chosen) > 1000
    assert not failures(chosen, SPECS)
