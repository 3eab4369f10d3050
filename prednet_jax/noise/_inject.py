"""Adds numerical noise to the arithmetic of a function.

`inject(fn, spec)` traces `fn` to a jaxpr, plans the noise of each equation (`plan`) and
evaluates the plan (`run`). An equation's noise is a hash of the key, of the equation's
path, such as `3:scan/0:dot_general`, and of the counters of the loops around it
(`random_bits`). docs/noise.md explains the consequences for bits, derivatives and, in
shard_map, devices. The rules of custom_jvp and custom_vjp are applied as written. Under
checkpoint, `grad(inject(checkpoint(f)))` recomputes with the same noise, and
`inject(grad(checkpoint(f)))` recomputes with different noise.
"""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax
from jax import Array

from prednet_jax.noise import compat, loops, random_bits
from prednet_jax.noise.arguments import Outcome, Static, split
from prednet_jax.noise.errors import NoiseError, check_function, texts
from prednet_jax.noise.plan import plan
from prednet_jax.noise.rules.primitives import known
from prednet_jax.noise.run import Evaluation, run
from prednet_jax.noise.specs import Elementwise, Identity, NoiseSpec, parts
from prednet_jax.noise.types import PyTree


def inject(
    fn: Callable,
    spec: NoiseSpec,
    *,
    only: Collection[str] | None = None,
    run_key: Array | None = None,
) -> Callable:
    """Returns a function that computes what `fn` computes, with numerical noise.

    Args:
        fn: a function that JAX can trace. Arrays among its arguments are traced;
            anything else, Python numbers included, must be hashable.
        spec: the noise; `noise.at(spec, "computation")` picks the parts that act here.
        only: paths of the equations that are perturbed, as `coverage` lists them,
            together with all that compute the same. Defaults to all. An equation's
            noise does not depend on this choice.
        run_key: a training's key, from which orders of `schedule="run"` are drawn.
            Defaults to the key of each call.

    Returns:
        `noisy(key, *args, **kwargs)`. `key` is a typed PRNG key or raw key data; a
            keyword `key` is passed to `fn`. The result has the structure of the result
            of `fn`, and leaves that are not arrays are unchanged. Flax NNX objects
            among the arguments are mutated as `fn` mutates them, and donated arrays are
            donated. Outside of any transform `noisy` is compiled, so that it agrees
            bitwise with `jax.jit(noisy)`; under `Identity()`, `fn` itself is called.

    Raises:
        NoiseError: `spec` is not a noise spec or has a part that acts elsewhere. On a
            call: an argument can neither be traced nor hashed; no equation has a path
            of `only`; no primitive has a name in `spec`; `fn` mutates an NNX object
            that it closes over, or changes the structure of an NNX object.
        UnsupportedPrimitiveError: on a call; a higher-order primitive has no rule.

    Example:
        >>> import jax, numpy as np
        >>> from prednet_jax import noise
        >>> x = np.linspace(0, 1, 5000, dtype=np.float32)
        >>> noisy = noise.inject(lambda x: x.sum(), noise.UlpPerturbation())
        >>> results = {float(noisy(jax.random.key(i), x)) for i in range(8)}
        >>> len(results) > 1  # each key moves the result by another rounding
        True
    """
    for part in parts(spec):
        if part.site != "computation":
            where = {"gradient": "a gradient", "weights": "initial weights"}[part.site]
            raise NoiseError(
                f"spec={spec!r}: {type(part).__name__} acts on {where}, by "
                "noise.perturb_tree; expected parts that act on a computation, such "
                "as noise.at(spec, 'computation') gives"
            )
    check_function(fn)
    paths = texts("only", only, "a collection of paths, such as [...]")
    if run_key is not None:
        random_bits.check(run_key)
    if isinstance(spec, Identity):
        return _named(lambda key, /, *args, **kwargs: fn(*args, **kwargs), fn, spec)
    program = _compiled(fn, spec, None if paths is None else frozenset(paths))

    def noisy(key: Array, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        random_bits.check(key)
        static, arrays, objects = split((args, kwargs))
        outcome = program(static.checked(), key, run_key, *arrays)
        outcome.write_back(objects)
        return outcome.result(objects)

    return _named(noisy, fn, spec)


def _compiled(
    fn: Callable, spec: NoiseSpec, chosen: frozenset[str] | None
) -> Callable[..., Outcome]:
    """Returns `program(static, key, run_key, *arrays)`: `fn` under noise, compiled.

    The program donates the arrays that `fn` donates when called with such arrays.
    """
    # Which arguments are donated may depend on shapes and types.
    donated: dict[tuple, tuple[int, ...]] = {}

    # Which programs call the host, and so may fail while they run.
    fails: set[tuple] = set()

    def of_arrays(
        static: Static,
        options: loops.Options,
        key: Array,
        run_key: Array | None,
        *arrays: Array,
    ) -> Outcome:
        program = traced(static.call(fn), arrays)
        kinds = static, options, *map(jax.typeof, arrays)
        # Before the arrays come four other arguments.
        donated[kinds] = tuple(4 + i for i in compat.donated(program.jaxpr))
        with loops.using(options):
            return evaluate(spec, key, program, arrays, only=chosen, run_key=run_key)

    @functools.cache
    def compiled(places: tuple[int, ...] = ()) -> jax.stages.Wrapped:
        return jax.jit(of_arrays, static_argnums=(0, 1), donate_argnums=places)

    def called(static: Static, *inputs: Array) -> Outcome:
        key, _, *arrays = inputs
        options = loops.current()
        if any(isinstance(x, jax.core.Tracer) for x in (key, *arrays)):
            return compiled()(static, options, *inputs)
        kinds = static, options, *map(jax.typeof, arrays)
        if kinds not in donated:
            # The compiled function finds this trace.
            program = compiled().trace(static, options, *inputs).jaxpr
            fails.update([kinds] if loops.calls_host(program) else ())
        call = functools.partial(compiled(donated.get(kinds, ())), static, options)
        if kinds not in fails:
            return call(*inputs)
        with loops.naming_failures():
            return jax.block_until_ready(call(*inputs))

    return called


class Traced(NamedTuple):
    """A program, and the structure, shapes and types of its results."""

    jaxpr: compat.Jaxpr
    shapes: PyTree


def traced(fn: Callable, arrays: Sequence[PyTree]) -> Traced:
    """Returns the program of a function of arrays."""
    for x in arrays:
        if not all(isinstance(size, int) for size in getattr(x, "shape", ())):
            raise NoiseError(
                f"an argument has the symbolic shape {x.shape}: expected a fixed "
                "shape, because sizes decide where noise acts"
            )
    return Traced(*jax.make_jaxpr(fn, return_shape=True)(*arrays))


def evaluate(
    spec: NoiseSpec,
    key: Array,
    program: Traced,
    arrays: Sequence[PyTree],
    *,
    only: frozenset[str] | None = None,
    run_key: Array | None = None,
    hooks: Evaluation | None = None,
) -> PyTree:
    """Plans a program and runs it at `arrays`. It raises the errors of `inject`."""
    closed, shapes = program
    planned = plan(closed, spec, only)
    chosen = [p.primitives or () for p in parts(spec) if isinstance(p, Elementwise)]
    names = {name for primitives in chosen for name in primitives}
    names -= {step.name for step in planned.walk()}
    missing = sorted(names - known() if names else ())
    missing += sorted(only - planned.paths() if only else ())
    if missing:
        raise NoiseError(
            f"nothing to perturb at {', '.join(map(repr, missing))}: expected paths "
            "that noise.coverage(fn, spec)(*args) lists, or names of primitives"
        )
    leaves = jax.tree.leaves(arrays)
    with jax.numpy_rank_promotion("allow"):
        out = run(planned, key, leaves, run_key=run_key, evaluation=hooks)
    weak = [getattr(s, "weak_type", False) for s in jax.tree.leaves(shapes)]
    out = [compat.weakly_typed(x) if w else x for x, w in zip(out, weak, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(shapes), out)


def _named(noisy: Callable, fn: Callable, spec: NoiseSpec) -> Callable:
    """Names a transformed function. `wraps` would copy the signature, which differs."""
    name = getattr(fn, "__name__", "function")
    noisy.__name__ = noisy.__qualname__ = f"noisy_{name}"
    noisy.__doc__ = f"{name} under {spec!r}; takes a PRNG key first."
    return noisy
