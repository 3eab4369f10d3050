"""No floating-point arithmetic is passed by in silence: it is perturbed, or listed."""

import contextlib
import functools
import itertools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.experimental import sparse
from jax.extend import core

from prednet_jax import noise
from prednet_jax.noise.rules import registry
from prednet_jax.noise.rules.primitives import EXACT, ROUNDING, rounds_to
from tests.processes import python

KEY = jax.random.key(0)
ORDER = noise.ReductionOrder(granularity="element", shortest=1)
ULP = noise.UlpPerturbation()
# They run programs of their own, and are refused where they have no rule.
PROGRAMS = {"custom_lin", "custom_partitioning", "linear_call"}
PROGRAMS |= {"remat_opt", "run_scoped", "run_state"}


def test_every_primitive_of_jax_is_known():
    """Of another version of JAX, new ones are listed as unknown until they are here."""
    if jax.__version__ != "0.10.2":
        pytest.skip("a list of jax 0.10.2")
    # A process of its own: other tests and libraries define primitives in theirs.
    code = (
        "from prednet_jax.noise import compat; from prednet_jax.noise.rules import "
        "primitives, registry; names = compat.primitive_names(); "
        "print(len(names), *(n for n in names if n not in registry.RULES))"
    )
    count, *unknown = python("-c", code).stdout.split()
    assert int(count) > 200
    assert not set(unknown) - EXACT - PROGRAMS
    assert not EXACT & ROUNDING
    assert not EXACT & {
        n
        for n, rule in registry.RULES.items()
        if getattr(rule, "cut", None) or getattr(rule, "left_alone", "")
    }


@contextlib.contextmanager
def types_of(harness):
    """JAX as a program needs it."""
    # Types come as classes, as NumPy's and as those of keys.
    wide = any(name in str(harness.dtype) for name in WIDE)
    with jax.enable_x64(wide), jax.numpy_dtype_promotion("standard"):
        yield


def floating(equation):
    avals = [x.aval for x in equation.outvars or equation.invars]
    types = [getattr(aval, "dtype", np.dtype(bool)) for aval in avals]
    sizes = [getattr(aval, "size", 1) for aval in avals]
    return any(jnp.issubdtype(t, jnp.inexact) for t in types) and any(sizes)


@pytest.mark.parametrize("spec", [ORDER, ULP, noise.ReducedPrecision("bf16")])
def test_every_equation_of_jax_programs_is_in_a_list_or_exact(harnesses, spec):
    """A walk over the program on its own, beside the plan's."""
    for harness, *_ in harnesses.values():
        with types_of(harness):
            args = harness.dyn_args_maker(np.random.RandomState(0))
            report = noise.coverage(harness.dyn_fun, spec)(*args)
            entries = report.perturbed + report.untouched + report.single
            equations = jax.make_jaxpr(harness.dyn_fun)(*args).eqns
        for i, equation in enumerate(equations):
            name = equation.primitive.name
            if isinstance(registry.RULES.get(name), noise.HigherOrder):
                continue
            exact = name in EXACT and not rounds_to(equation)
            if floating(equation) and not exact:
                paths = {entry.path for entry in entries}
                assert f"{i}:{name}" in paths, (harness.fullname, name)


def test_what_is_called_exact_is(harnesses):
    """In float64 the same operands give the same numbers."""
    compared = set()
    for name, group in harnesses.items():
        for harness in group[:3]:
            # The next number of a type is what its name says.
            by_type = name == "nextafter" or np.dtype(harness.dtype) != np.float32
            if name not in EXACT or by_type:
                continue
            args = harness.dyn_args_maker(np.random.RandomState(0))
            narrow = jax.tree.leaves(harness.dyn_fun(*args))
            with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
                wide = [
                    jnp.asarray(x, np.float64)
                    if getattr(x, "dtype", None) == np.float32
                    else x
                    for x in args
                ]
                try:
                    wide = jax.tree.leaves(harness.dyn_fun(*wide))
                except TypeError:
                    continue  # its types are fixed
            if all(w.dtype == np.float64 for w in wide):
                compared.add(name)
                for x, w in zip(narrow, wide, strict=True):
                    np.testing.assert_array_equal(np.float64(x), w, err_msg=name)
    assert len(compared) > 20, compared


FORMS = (sparse.BCOO, sparse.BCSR, sparse.CSR, sparse.COO)


@pytest.mark.parametrize("form", FORMS, ids=[f.__name__ for f in FORMS])
def test_products_of_sparse_arrays_have_noise(form):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((8, 600)) * (rng.random((8, 600)) < 0.5)
    matrix = form.fromdense(jnp.asarray(dense, jnp.float32))
    vector = jnp.asarray(rng.standard_normal(600), jnp.float32)

    def product(matrix, vector):
        return matrix @ vector

    clean = product(matrix, vector)
    for spec in (ORDER, ULP):
        found = noise.inject(product, spec)(KEY, matrix, vector)
        assert np.any(found != clean), spec
        np.testing.assert_allclose(found, clean, atol=1e-3)
    names = {e.primitive for e in noise.coverage(product, ORDER)(matrix, vector)[0]}
    assert names == {"scatter-add"}
    gradient = jax.grad(lambda v: jnp.sum(noise.inject(product, ORDER)(KEY, matrix, v)))
    np.testing.assert_allclose(gradient(vector), dense.sum(0), rtol=1e-4, atol=1e-5)


def accumulated(x):
    ref = jax.new_ref(jnp.zeros(4, x.dtype))
    jax.ref.addupdate(ref, slice(0, 2), x[:2] * x[2:4])
    jax.ref.addupdate(ref, np.array([1, 1, 3]), x[:3])
    return ref[...]


@pytest.mark.parametrize(
    "spec", [ULP, noise.StochasticRounding(), noise.MonteCarlo("mca")]
)
def test_sums_into_a_mutable_array_have_noise(spec):
    x = jnp.asarray([0.1, 0.3, 0.7, 1.1])
    clean = accumulated(x)
    noisy = noise.inject(accumulated, spec)
    runs = [noisy(k, x) for k in jax.random.split(KEY, 20)]
    assert np.any(np.stack(runs) != clean)
    np.testing.assert_allclose(runs, np.broadcast_to(clean, (20, 4)), rtol=1e-6)
    named = noise.UlpPerturbation(primitives=("addupdate",))
    moved = noise.inject(accumulated, named)(KEY, x)
    assert np.any(moved != clean)
    assert moved[2] == clean[2] == 0
    perturbed = noise.coverage(accumulated, spec)(x).perturbed
    assert [e.primitive for e in perturbed] == ["mul", "addupdate", "addupdate"]
    # Their order is the program's.
    untouched = noise.coverage(accumulated, ORDER)(x).untouched
    assert all("mutable array" in e.reason and e.has_order for e in untouched)
    assert untouched


@pytest.mark.parametrize(
    "call",
    [
        functools.partial(lax.composite, name="tests.norm"),
        jax.custom_batching.sequential_vmap,
    ],
)
def test_calls_with_a_rule_of_their_own_are_entered(call):
    """A function with its own rule for vmap was refused."""
    norm = call(lambda x: x / jnp.sqrt(jnp.sum(x * x)))
    x = jnp.linspace(0.1, 1.0, 40)
    (entry,) = noise.coverage(norm, ORDER)(x).perturbed
    assert entry.path.split("/")[1:] == ["1:reduce_sum"]
    found = noise.inject(norm, ULP)(KEY, x)
    assert np.any(found != norm(x))
    np.testing.assert_allclose(found, norm(x), rtol=1e-6)


def test_the_fixed_order_of_an_associative_scan_is_listed():
    """Its additions were said to have no order."""

    def scans(x):
        return lax.associative_scan(jnp.add, x), x + 1.0

    x = jnp.linspace(0.1, 1.0, 9)
    report = noise.coverage(scans, ORDER)(x)
    assert {e.primitive for e in report.untouched} == {"add"}
    assert all(e.has_order for e in report.untouched)
    assert "a step of associative_scan, whose order the program fixes" in str(report)
    # An addition that is written by itself has none.
    assert [e.primitive for e in report.single] == ["add"]
    assert not noise.coverage(scans, ULP)(x).untouched


def test_what_rounds_without_noise_is_listed():
    for fn, primitive, reason in (
        (lambda x: x.astype(jnp.bfloat16), "convert_element_type", "bfloat16"),
        (lambda x: x.astype(int).astype(x.dtype), "convert_element_type", "int32 to"),
        (lambda x: lax.reduce_precision(x, 8, 7), "reduce_precision", "7 bits"),
        (lambda x: abs(lax.complex(x, x)), "abs", "magnitude"),
        (
            lambda x: x.astype(jnp.float8_e4m3fn) * x.astype(jnp.float8_e4m3fn),
            "mul",
            "float8_e4m3fn, a type that has no noise",
        ),
    ):
        x = jnp.linspace(0.1, 1.0, 8)
        entries = noise.coverage(fn, ULP)(x).untouched
        assert any(e.primitive == primitive and reason in e.reason for e in entries)
        single = noise.coverage(fn, ORDER)(x)
        assert primitive in {e.primitive for e in single.single}
        assert primitive in str(single)


def test_what_loses_no_bits_is_not_listed():
    x = jnp.linspace(0.1, 1.0, 8)
    for exact in (abs, jnp.negative):
        assert not noise.coverage(exact, ULP)(x).untouched
    half = x.astype(jnp.float16)
    assert not noise.coverage(lambda x: x.astype(jnp.float32), ULP)(half).untouched


def test_an_unknown_primitive_is_listed():
    primitive = core.Primitive("tests_unknown")
    primitive.def_abstract_eval(lambda x: x)
    primitive.def_impl(lambda x: x)
    x = jnp.ones(3)
    for spec in (ORDER, ULP):
        (entry,) = noise.coverage(primitive.bind, spec)(x).untouched
        assert "does not know" in entry.reason
        assert entry.has_order
    assert not noise.coverage(primitive.bind, ULP)(jnp.arange(3)).untouched


def test_a_float_beside_an_integer_is_a_result_too():
    """Only the first result's type was looked at."""

    def fn(x):
        shapes = (jax.ShapeDtypeStruct((), jnp.int32), jax.typeof(x))
        return jax.pure_callback(lambda x: (np.int32(1), np.sin(x)), shapes, x)

    x = jnp.linspace(0.1, 1.0, 8)
    for spec in (ORDER, ULP):
        (entry,) = noise.coverage(fn, spec)(x).untouched
        assert entry.primitive == "pure_callback"
        assert entry.has_order
    asked = noise.UlpPerturbation(primitives=("pure_callback",))
    count, sines = noise.inject(fn, asked)(KEY, x)
    assert count == 1
    assert np.any(sines != np.sin(x))


def test_symbolic_shapes_are_refused_in_one_line():
    (size,) = export.symbolic_shape("n")
    noisy = jax.jit(noise.inject(jnp.sum, ORDER))
    key = jax.eval_shape(lambda: jax.random.key_data(KEY))
    with pytest.raises(noise.NoiseError, match="has the symbolic shape"):
        export.export(noisy)(key, jax.ShapeDtypeStruct((size,), jnp.float32))
    fixed = export.export(noisy)(key, jax.ShapeDtypeStruct((9,), jnp.float32))
    assert fixed.call(jax.random.key_data(KEY), jnp.ones(9)) == 9


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
    name_of = operator.attrgetter("group_name")
    runnable = [h for h in module.all_harnesses if h.filter("cpu")]
    groups = itertools.groupby(sorted(runnable, key=name_of), name_of)
    return {name: list(group) for name, group in groups}


def check(harness, specs):
    """Runs one program with and without noise; raises where they disagree."""
    with types_of(harness):
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
