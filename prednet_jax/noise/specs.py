"""Defines the noises as frozen, validated specs, and the site at which each acts.

`inject` reads the specs of the site `"computation"`, which act on the primitives of a
traced function. `trees` reads the specs of the sites `"gradient"` and `"weights"`,
which act once on a pytree. Specs compose with `+`, and `at` picks the part that acts at
one site. Every spec is hashable, so it may be a static argument of a compiled function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from prednet_jax.noise import compat, errors
from prednet_jax.noise.errors import NoiseError

SITES = ("computation", "gradient", "weights")


class Format(NamedTuple):
    """A binary format, with the denormal numbers that IEEE 754 gives it.

    Attributes:
        exponent: number of exponent bits; 8 is the range of float32.
        mantissa: number of explicit mantissa bits.
        largest: magnitude that takes the place of all larger ones. Defaults to None:
            they become infinite, beyond the range of IEEE 754.
    """

    exponent: int
    mantissa: int
    largest: float | None = None


#: The narrower formats of tensor cores. `fp8` is E4M3 (float8_e4m3fn).
FORMATS = {
    "tf32": Format(8, 10),
    "bf16": Format(8, 7),
    "fp16": Format(5, 10),
    "fp8": Format(4, 3, 448.0),
}
MAX_PARTIALS = 64
MAX_PARTS = 32
_SEVERAL = f"at most {MAX_PARTS} noises"


def option(default: Any, check: Callable[..., object], **accepted: Any) -> Any:
    """Returns a field of a spec, which `check(name, value, **accepted)` validates."""
    metadata = {"check": partial(check, **accepted)}
    return dataclasses.field(default=default, metadata=metadata)


def choice(default: Any, *accepted: str) -> Any:
    """Returns a field whose value is one of these strings."""
    return option(default, errors.one_of, accepted=accepted)


def integer(default: Any, low: int, high: int) -> Any:
    """Returns a field whose value is an integer from `low` to `high`."""
    return option(default, errors.check_int, low=low, high=high)


@dataclass(frozen=True)
class NoiseSpec:
    """Base class of all specs. `site` names where the noise acts."""

    site: ClassVar[str] = "computation"
    # Whether a composition holds at most one of this kind.
    alone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, check = getattr(self, field.name), field.metadata.get("check")
            if check is not None and not (value is None is field.default):
                check(field.name, value)

    def __add__(self, other: NoiseSpec) -> NoiseSpec:
        """Returns both noises, `self` first."""
        return compose(self, other) if isinstance(other, NoiseSpec) else NotImplemented


@dataclass(frozen=True)
class Identity(NoiseSpec):
    """No noise: the transformed function is bitwise the original function."""


@dataclass(frozen=True, kw_only=True)
class ReductionOrder(NoiseSpec):
    """Partial sums accumulated in a random order, as split-K and atomics do.

    docs/noise/noises.md ("Reduction order") defines the sum and explains the options.

    Attributes:
        partials: the largest number of pieces of a reduction, 3 to 64 (two commute).
        granularity: the outputs that share an order: `"shared"`, all outputs of a
            reduction; `"tile"`, each `tile` x `tile` block of outputs (rows: all
            leading dimensions; columns: the last); `"element"`, each output has its
            own.
        tile: edge of a block of outputs, used only by `"tile"`.
        schedule: `"call"` draws orders at each execution, `"run"` once for a key.
        profile: the sums that are perturbed; `order.profiles` lists them and the
            sources. `"chainer_cudnn"` reads scopes of `jax.named_scope`: a
            `dot_general` is part of a convolution if a scope around it begins with
            `conv`; it or a convolution is a gradient if JAX transposed it, if a scope
            contains `gradient` or `backward`, or by its dimension numbers.
            Recomputation under `jax.checkpoint` counts as a forward pass.
        shortest: the fewest terms of a piece if `partials` pieces are made; otherwise
            there are three pieces (four where no axis holds three).
        accumulate: type of the partial sums: `"float32"`, or wider; `"operand"`.
        collectives: order of sums over devices: `"ring"`, `"tree"`, `"sequential"` or
            `"random"`; `order.collectives` cites the sources. Defaults to None: the
            order of a psum over at most 64 devices is drawn, with float32 sums, and
            other collectives keep XLA's order.
        chain: the number of additions to which the error of a sum is scaled.
            `"pieces"` is the number that is made. `"terms"` is all terms added one
            after another, as in a loop or another library: the difference of two drawn
            orders grows with the square root of terms over pieces (N. Higham and T.
            Mary, SIAM J. Sci. Comput. 41, 2019). The systematic loss of such a chain is
            added (`order.permutations.chain_error`). Sums that are exact in every order
            stay exact.
    """

    alone: ClassVar[bool] = True
    partials: int = integer(8, 3, MAX_PARTIALS)
    granularity: str = choice("tile", "tile", "element", "shared")
    tile: int = integer(32, 1, 1 << 20)
    schedule: str = choice("call", "call", "run")
    profile: str = choice(
        "uniform_worst_case",
        *("uniform_worst_case", "xla_gpu", "chainer_cudnn", "collectives"),
    )
    shortest: int = integer(256, 1, 1 << 30)
    accumulate: str = choice("float32", "float32", "operand")
    collectives: str | None = choice(None, "random", "ring", "tree", "sequential")
    chain: str = choice("pieces", "pieces", "terms")


@dataclass(frozen=True)
class FixedOrder(NoiseSpec):
    """Base class of specs that give each sum one other order; nothing is random.

    `replay(equation)` returns a `Replay`, which evaluates the sum of its operands
    (`evaluate`) and describes it for coverage (`reason`), or an
    `order.partials.LeftAlone` with the reason for no replay. `prepare` is called once
    with the program beforehand.
    """

    alone: ClassVar[bool] = True

    def prepare(self, jaxpr: compat.Jaxpr) -> None:
        """Collects the information that the sums of a program need, all at once."""

    def replay(self, equation: compat.Equation) -> Any:
        """Returns how to evaluate a first-order equation, or why it is not replayed."""
        raise NotImplementedError


class Replay(NamedTuple):
    """The function that evaluates an equation, and its description for coverage."""

    evaluate: Callable[..., Any]
    reason: str


@dataclass(frozen=True)
class Elementwise(NoiseSpec):
    """Base of the noises on the output of floating-point arithmetic primitives.

    Attributes:
        primitives: names of the primitives to perturb. Defaults to all that round
            (`rules.primitives.ROUNDING`).
        deterministic: whether the noise is a function of the operation and the bits of
            its operands (for a sum, of its result) instead of the key and the place.
        routines: whether the operands of library routines (linear algebra, FFT) and of
            kernels are perturbed too (docs/noise/limits.md gives the reason).
    """

    _: KW_ONLY
    primitives: tuple[str, ...] | None = option(None, errors.names)
    deterministic: bool = option(False, errors.flag)
    routines: bool = option(False, errors.flag)


@dataclass(frozen=True)
class StochasticRounding(Elementwise):
    """Rounds each result up or down with a probability given by its distance.

    Attributes:
        mantissa_bits: explicit mantissa bits kept, 1 to 52. Defaults to the bits of the
            result's type (23 in float32), with the operation's own rounding error.
    """

    mantissa_bits: int | None = integer(None, 1, 52)


@dataclass(frozen=True)
class MonteCarlo(Elementwise):
    """Monte Carlo arithmetic (Parker 1997), as in Verificarlo.

    Attributes:
        mode: `"rr"` perturbs results (random rounding), `"pb"` operands (precision
            bounding), `"mca"` both.
        virtual_precision: significant bits t of the virtual format, 2 to 53. Defaults
            to 53 for float64 and 24 for all narrower types.
    """

    mode: str = choice("rr", "rr", "pb", "mca")
    virtual_precision: int | None = integer(None, 2, 53)

    def precision(self, dtype: object) -> int:
        """Returns the virtual precision for numbers of a type."""
        if self.virtual_precision is not None:
            return self.virtual_precision
        return 53 if dtype == "float64" else 24


@dataclass(frozen=True)
class UlpPerturbation(Elementwise):
    """Moves each result by a uniform integer number of ulps in +-`max_ulps`.

    Attributes:
        max_ulps: the largest number of ulps, from 1 to 2^20.
        keep_exact: whether exact results of +, -, *, / and square root, and of sums and
            products of whole numbers, stay as they are.
    """

    max_ulps: int = integer(1, 1, 1 << 20)
    keep_exact: bool = option(False, errors.flag)


@dataclass(frozen=True)
class Gaussian(Elementwise):
    """Adds normal noise to each result.

    Attributes:
        scale: standard deviation; with `relative`, in units of the RMS of the result.
        relative: whether `scale` is relative.
    """

    scale: float = option(dataclasses.MISSING, errors.positive)
    relative: bool = option(True, errors.flag)


@dataclass(frozen=True)
class ReducedPrecision(NoiseSpec):
    """Rounds the operands of dot and conv to a narrower format, as tensor cores do.

    Attributes:
        format: `"tf32"` (8 exponent bits, 10 mantissa bits), `"bf16"` (8, 7),
            `"fp16"` (5, 10) or `"fp8"` (4, 3; saturates at 448).
    """

    alone: ClassVar[bool] = True
    format: str = choice(dataclasses.MISSING, *FORMATS)


@dataclass(frozen=True)
class GradientGaussian(NoiseSpec):
    """Adds normal noise to a gradient, of deviation `scale` x RMS of all its leaves."""

    site: ClassVar[str] = "gradient"
    scale: float = option(dataclasses.MISSING, errors.positive)


@dataclass(frozen=True)
class BitFlip(NoiseSpec):
    """Flips one bit of one initial weight (Summers & Dinneen, ICML 2021).

    Attributes:
        bit: the bit's number, from 0 (the lowest of the mantissa) to 63.
        leaf: a part of the weight's path as `jax.tree_util.keystr` writes it, matching
            exactly one leaf. Defaults to a random leaf: each weight is equally likely.
        index: flat index of the weight in that leaf. Defaults to a random index.
    """

    site: ClassVar[str] = "weights"
    alone: ClassVar[bool] = True
    bit: int = integer(0, 0, 63)
    leaf: str | None = option(None, errors.text, wanted="None or part of a path")
    index: int | None = integer(None, 0, (1 << 63) - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.index is not None and self.leaf is None:
            raise NoiseError(
                f"index={self.index} counts the elements of a leaf: expected leaf too"
            )


@dataclass(frozen=True)
class Composition(NoiseSpec):
    """Several noises at once, applied in the order of `specs`.

    At most one of them orders sums, one narrows operands, and one flips a bit.
    """

    specs: tuple[NoiseSpec, ...]

    def __post_init__(self) -> None:
        specs = self.specs
        several = isinstance(specs, tuple) and len(specs) > 1
        errors.expect(several, "specs", specs, "a tuple of two or more specs")
        compound = Composition | Identity
        for spec in specs:
            if not isinstance(spec, NoiseSpec) or isinstance(spec, compound):
                raise NoiseError(
                    f"specs holds {errors.shown(spec)}: expected specs other than "
                    "Identity and Composition; use compose() to flatten"
                )
        alone = {type(spec): "at most one of a kind" for spec in specs if spec.alone}
        orders = {ReductionOrder | FixedOrder: "one order for a sum"}
        for kind, expected in (alone | orders).items():
            same = [spec for spec in specs if isinstance(spec, kind)]
            errors.expect(len(same) < 2, "specs", same, expected)
        errors.expect(len(specs) <= MAX_PARTS, "specs", len(specs), _SEVERAL)


def compose(*specs: NoiseSpec) -> NoiseSpec:
    """Returns the noises of all `specs` in order: flattened, without Identity."""
    flat = [part for spec in specs for part in parts(spec)]
    if not flat:
        return Identity()
    return flat[0] if len(flat) == 1 else Composition(tuple(flat))


def default() -> NoiseSpec:
    """Returns the default noise, for comparing devices or compilations.

    Sums are added in another order, drawn for each element, and every result moves by
    up to one unit in the last place, unless it is exact.
    """
    rounding = UlpPerturbation(keep_exact=True)
    return compose(ReductionOrder(granularity="element"), rounding)


def rounding() -> NoiseSpec:
    """Returns the default noise for the rounding errors of one program.

    Sums are added in another order, drawn for each element, and results are rounded up
    or down at random. Exact results, such as counts, do not move.
    """
    return compose(ReductionOrder(granularity="element"), StochasticRounding())


def parts(spec: NoiseSpec) -> tuple[NoiseSpec, ...]:
    """Returns the simple specs that `spec` consists of; an empty tuple for Identity."""
    accepted = "a noise spec, such as noise.parse('ulp') gives"
    errors.expect(isinstance(spec, NoiseSpec), "spec", spec, accepted)
    if isinstance(spec, Composition):
        return spec.specs
    return () if isinstance(spec, Identity) else (spec,)


def at(spec: NoiseSpec, site: str) -> NoiseSpec | None:
    """Returns the part of `spec` that acts at `site` (one of `SITES`), or None."""
    errors.one_of("site", site, SITES)
    acting = [part for part in parts(spec) if part.site == site]
    return compose(*acting) if acting else None
