"""What noise: frozen, validated descriptions, and the site at which each acts.

`inject` reads the specs of the site `"computation"`, which act on the primitives of a
traced function; those of `"gradient"` and `"weights"`, which act once on a pytree,
stand in `trees`. Specs compose with `+`, and `at` picks the part that acts at one site.
Every spec is hashable, so it may be a static argument of a compiled function.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from prednet_jax.noise import errors
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.gpu.targets import CARDS

Site = Literal["computation", "gradient", "weights"]

SITES = ("computation", "gradient", "weights")
GRANULARITIES = ("tile", "element", "shared")
SCHEDULES = ("call", "run")
PROFILES = ("uniform_worst_case", "xla_gpu", "chainer_cudnn", "collectives")
COLLECTIVES = ("random", "ring", "tree", "sequential")
MCA_MODES = ("rr", "pb", "mca")
ACCUMULATORS = ("float32", "operand")
FORMATS = ("tf32", "bf16", "fp16")
MAX_PARTIALS = 64

# Of an option that came after records were published: they name it only where it is not
# its default, so that their texts stay the same.
LATER = MappingProxyType({"later": True})


@dataclass(frozen=True)
class NoiseSpec:
    """Base of all specs. `site` says where the noise acts."""

    site: ClassVar[Site] = "computation"
    # Whether a composition holds at most one of this kind.
    alone: ClassVar[bool] = False

    def __add__(self, other: NoiseSpec) -> NoiseSpec:
        """Both noises, `self` first."""
        return compose(self, other) if isinstance(other, NoiseSpec) else NotImplemented


@dataclass(frozen=True)
class Identity(NoiseSpec):
    """No noise: the transformed function is bitwise the plain one."""


@dataclass(frozen=True, kw_only=True)
class ReductionOrder(NoiseSpec):
    """Partial sums accumulated in a random order, as split-K and atomics do.

    Every reduction is cut into `partials` consecutive pieces; each piece is summed as
    XLA sums it, and the pieces are then added one after another in a drawn order. All
    orders are equally likely.

    Attributes:
        partials: pieces of each reduction at most, 3 to 64 (two commute).
        granularity: for whom an order is drawn. `"shared"`: one for all outputs of a
            reduction; two identical hidden units then stay identical. `"tile"`: one for
            each `tile` x `tile` block of outputs (rows: all leading dimensions;
            columns: the last). `"element"`: one for each output.
        tile: edge of a block of outputs, used by `"tile"` alone.
        schedule: `"call"` (atomics): fresh at each execution and at each step of a
            loop. `"run"` (autotuning): a function of the key and the equation alone.
        profile: which primitives are perturbed; `order.profiles` has the sources.
            `"uniform_worst_case"`: every sum. `"xla_gpu"`: those on XLA's page on GPU
            determinism. `"chainer_cudnn"`: gradients of convolutions, scatter-add and
            max-pooling's backward pass. It reads scopes of `jax.named_scope`: a
            `dot_general` is part of a convolution if a scope around it begins with
            `conv`; it or a convolution is a gradient if JAX transposed it, if a scope
            contains `gradient` or `backward`, or by its dimension numbers. What
            `jax.checkpoint` computes again counts as a forward pass. `"collectives"`:
            sums over devices alone.
        shortest: a sum is cut into 3 pieces where `partials` pieces would have fewer
            terms than this, as library kernels do (4 where no axis holds three). Dots
            and convolutions with at most 1024 outputs always have `partials` pieces.
        accumulate: `"float32"`: partial sums are kept in float32 or wider and rounded
            once, as in matrix units. `"operand"`: in the type of the operands (bfloat16
            or float16), rounded after each piece and each addition, as in split-K
            kernels and all-reduces with such outputs.
        collectives: in which order sums over devices (psum, pmean, psum_scatter, with
            groups, and the sum over an all_gather) are added, in the type that they
            travel in; `order.collectives` has the sources. `"ring"`, `"tree"`: as NCCL
            does. `"sequential"`: by rank, as XLA does on a CPU. `"random"`: drawn.
            None: psum over at most 64 devices is drawn and kept in float32; others have
            XLA's order.
    """

    alone: ClassVar[bool] = True
    partials: int = 8
    granularity: str = "tile"
    tile: int = 32
    schedule: str = "call"
    profile: str = "uniform_worst_case"
    shortest: int = 256
    accumulate: str = field(default="float32", metadata=LATER)
    collectives: str | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        errors.integer("partials", self.partials, 3, MAX_PARTIALS)
        errors.integer("shortest", self.shortest, 1, 1 << 30)
        errors.choice("granularity", self.granularity, GRANULARITIES)
        errors.integer("tile", self.tile, 1, 1 << 20)
        errors.choice("schedule", self.schedule, SCHEDULES)
        errors.choice("profile", self.profile, PROFILES)
        errors.choice("accumulate", self.accumulate, ACCUMULATORS)
        if self.collectives is not None:
            errors.choice("collectives", self.collectives, COLLECTIVES)


@dataclass(frozen=True)
class GpuOrder(NoiseSpec):
    """Sums added in the fixed order of a GPU's kernels; nothing is random.

    Attributes:
        gpu: whose, a name of `gpu.targets.CARDS`. The order of each `reduce_sum` is
            read from the kernel that XLA compiles for that sum alone.
        products: the model of dots and convolutions, which are the libraries'.
            `"fused"`: one accumulator for each output, terms in rising order of k,
            fused multiply-add; operands rounded to TF32 where the GPU does that
            (`gpu.orders`). `"plain"`: as this machine computes them.
    """

    alone: ClassVar[bool] = True
    gpu: str
    products: str = field(default="fused", metadata=LATER)

    def __post_init__(self) -> None:
        errors.choice("gpu", self.gpu, tuple(CARDS))
        errors.choice("products", self.products, ("fused", "plain"))


@dataclass(frozen=True)
class Elementwise(NoiseSpec):
    """Base of the noises on the output of floating-point arithmetic primitives.

    Attributes:
        primitives: names of the primitives that are perturbed; None: all of
            `rules.primitives.ROUNDING`.
        deterministic: the noise is a function of the operation and the bits of its
            operands, not of the key or the place in the program (as in Verrou's
            deterministic modes). For sums the result stands for its operands.
        routines: whether the operands of a library's routines (linear algebra, FFT) and
            of kernels are perturbed too: a backward stable routine errs as if its
            operands had been rounded.
    """

    _: KW_ONLY
    primitives: tuple[str, ...] | None = None
    deterministic: bool = False
    routines: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        errors.names("primitives", self.primitives)
        errors.flag("deterministic", self.deterministic)
        errors.flag("routines", self.routines)


@dataclass(frozen=True)
class StochasticRounding(Elementwise):
    """Round each result up or down with probability given by its distance.

    Attributes:
        mantissa_bits: explicit mantissa bits kept, 1 to 52; None: those of the result's
            own type (23 in float32). There the rounding error of the operation itself
            decides.
    """

    mantissa_bits: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mantissa_bits is not None:
            errors.integer("mantissa_bits", self.mantissa_bits, 1, 52)


@dataclass(frozen=True)
class MonteCarlo(Elementwise):
    """Monte Carlo arithmetic (Parker 1997), as Verificarlo offers it.

    Attributes:
        mode: `"rr"` perturbs results (random rounding), `"pb"` operands (precision
            bounding), `"mca"` both.
        virtual_precision: significant bits t of the virtual format, 2 to 53; None: 53
            for float64, 24 for all narrower types.
    """

    mode: str = "rr"
    virtual_precision: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        errors.choice("mode", self.mode, MCA_MODES)
        if self.virtual_precision is not None:
            errors.integer("virtual_precision", self.virtual_precision, 2, 53)

    def precision(self, dtype: Any) -> int:
        """The virtual precision for numbers of a type."""
        if self.virtual_precision is not None:
            return self.virtual_precision
        return 53 if dtype == "float64" else 24


@dataclass(frozen=True)
class UlpPerturbation(Elementwise):
    """Move each result by a uniform integer number of ulps in +-`max_ulps`."""

    max_ulps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        errors.integer("max_ulps", self.max_ulps, 1, 1 << 20)


@dataclass(frozen=True)
class Gaussian(Elementwise):
    """Add normal noise to each result.

    Attributes:
        scale: standard deviation; with `relative`, in units of the RMS of the result.
        relative: whether `scale` is relative.
    """

    scale: float
    relative: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        errors.positive("scale", self.scale)
        errors.flag("relative", self.relative)


@dataclass(frozen=True)
class ReducedPrecision(NoiseSpec):
    """Round the operands of dot and conv to a narrower format, as tensor cores do.

    Attributes:
        format: `"tf32"` (8 exponent bits, 10 mantissa bits), `"bf16"` (8, 7) or
            `"fp16"` (5, 10).
    """

    alone: ClassVar[bool] = True
    format: str

    def __post_init__(self) -> None:
        errors.choice("format", self.format, FORMATS)


@dataclass(frozen=True)
class Composition(NoiseSpec):
    """Several noises at once, applied in the order of `specs`.

    A sum has one order, an operand one format, and one bit is flipped.
    """

    specs: tuple[NoiseSpec, ...]

    def __post_init__(self) -> None:
        specs = self.specs
        if not isinstance(specs, tuple) or len(specs) < 2:
            raise NoiseError(f"specs={specs!r}: expected a tuple of two or more specs")
        for spec in specs:
            if not isinstance(spec, NoiseSpec) or isinstance(
                spec, Composition | Identity
            ):
                raise NoiseError(
                    f"specs holds {spec!r}: expected specs other than Identity and "
                    "Composition; use compose() to flatten"
                )
        for kind in {type(spec) for spec in specs if spec.alone}:
            found = [spec for spec in specs if isinstance(spec, kind)]
            if len(found) > 1:
                raise NoiseError(f"specs={found!r}: expected at most one of a kind")
        orders = [s for s in specs if isinstance(s, ReductionOrder | GpuOrder)]
        if len(orders) > 1:
            raise NoiseError(f"specs={orders!r}: expected one order for a sum")


def compose(*specs: NoiseSpec) -> NoiseSpec:
    """The noises of all `specs` in order: flattened, without Identity."""
    flat = [part for spec in specs for part in parts(spec)]
    if not flat:
        return Identity()
    return flat[0] if len(flat) == 1 else Composition(tuple(flat))


def parts(spec: NoiseSpec) -> tuple[NoiseSpec, ...]:
    """The simple specs of which `spec` consists; none for Identity."""
    if not isinstance(spec, NoiseSpec):
        raise NoiseError(
            f"spec={spec!r}: expected a noise spec, such as noise.parse('ulp') gives"
        )
    if isinstance(spec, Composition):
        return spec.specs
    return () if isinstance(spec, Identity) else (spec,)


def at(spec: NoiseSpec, site: str) -> NoiseSpec | None:
    """The part of `spec` that acts at `site` (one of `SITES`), or None."""
    errors.choice("site", site, SITES)
    found = [part for part in parts(spec) if part.site == site]
    return compose(*found) if found else None
