"""Interchangeable algorithms for the networks' convolutions.

Every convolution has an odd k x k kernel `[k, k, in, out]`, stride 1 and zero 'same'
padding, and acts on maps `[B, H, W, C]`. An `upsampled` one acts on the
nearest-neighbour x2 enlargement of its input. The algorithms agree up to rounding: each
adds the same numbers in another fixed order, so each can be a treatment in the
comparison.

    xla       XLA's own convolution and gradients; on GPUs cuDNN's
    direct    XLA's convolution for outputs and input gradients; the filter gradient
              computes two neighbouring outputs together
    im2col    one matrix product with neighbourhoods of k k C values
    shifted   k k matrix products with shifted maps
    wide4     four neighbouring outputs together, as further channels
    strip2/4  Winograd F(2,3)/F(4,3) along the width, XLA's convolution along the height
    mixed     `direct`, but with the filter gradient of `strip2`
    folded    the enlargement folded into the kernel; `upsampled` only, so it cannot be
              the algorithm of a whole network

The gradients use the algorithm's own functions; differentiating `forward` would give
slow transposes of slices. Forward over reverse mode works (Hessian products), forward
mode alone does not. The noise profile `chainer_cudnn` recognises a convolution by its
named scope, which begins with `conv`.

The thresholds of `fastest` were measured on two AVX-512 processors at 160x120 (channels
3,48,96,192), 64x48 (3,12,24,48) and 32x24 (3,6,12), by `experiments/benchmark.py
--suite=conv` of commit 09c1a23; `BATCH_CHANNELS` by its suite `step` with batches of 8.
study/pages/measurements.md has the figures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from prednet_jax.config import Convolution
from prednet_jax.errors import UserError
from prednet_jax.models.convolution import algorithm as plain
from prednet_jax.models.convolution import winograd
from prednet_jax.models.convolution.algorithm import Algorithm, Transformed, of_enlarged
from prednet_jax.models.products import operand, operand_dtype, sum_dtype

# Most pixels in one chunk of a filter gradient. With 6,200 or 4,000 the step was 2 to
# 8 % slower and needed 3 MB less:
#     python experiments/benchmark.py --suite=step
CHUNK_PIXELS = 12_000
# On a GPU a chunk fills the device; more would take memory only.
CHUNK_PIXELS_GPU = 250_000
# `wide4` is the fastest up to this number of input and output channels.
NARROW_CHANNELS = 16
# From this number of channels on (the smaller of input and output), Winograd's
# algorithm saves more on products than its transforms of the maps cost.
WINOGRAD_CHANNELS = 96
# In batches the filter gradient has enough maps for Winograd's algorithm from this
# number of channels on.
BATCH_CHANNELS = 12
# In maps of fewer pixels most of the time goes into reading the kernel, and F(4,3)
# enlarges the kernel more than F(2,3) does.
FEW_PIXELS = 600
# On a GPU a product of matrices of neighbourhoods up to this many numbers is faster
# than cuDNN, whose calls bring further kernels with them; above it, cuDNN is
# (docs/gpu.md; an H200, experiments/on_gpu.py).
GPU_NEIGHBOURHOODS = 16_000_000
# Frames in one iteration of the loop over a window on a GPU, where every convolution
# is such a product: kernels are then so small that launching them takes the time.
GPU_FRAMES = 10

ALGORITHMS: dict[str, Algorithm] = {
    "xla": plain.XLA,
    "direct": plain.DIRECT,
    "im2col": plain.IM2COL,
    "shifted": plain.SHIFTED,
    "wide4": plain.WIDE4,
    "strip2": winograd.STRIP2,
    "strip4": winograd.STRIP4,
    "mixed": winograd.MIXED,
    "folded": winograd.FOLDED,
}


def resolve(shape: Convolution, dtype: DTypeLike = jnp.float32, batch: int = 1) -> str:
    """Returns the name of the algorithm that computes a convolution in this process.

    `batch` is the number of sequences that a device sees at once. A filter size other
    than 3 with an algorithm for 3x3 filters is a UserError.
    """
    name, size = shape.algorithm, shape.filter_size
    if name == "auto":
        return fastest(shape, jax.default_backend(), operand_dtype(dtype), batch)
    if ALGORITHMS[name].only_3x3 and size != 3:
        others = (n for n, algorithm in ALGORITHMS.items() if not algorithm.only_3x3)
        raise UserError(
            f"convolution={name!r} with filter size {size}: expected filter size 3, or "
            f"one of auto, {', '.join(others)}"
        )
    return name


def fastest(
    shape: Convolution, backend: str, dtype: DTypeLike = jnp.float32, batch: int = 1
) -> str:
    """Returns the algorithm measured to be the fastest for a shape on a backend."""
    if backend != "cpu":
        return "im2col" if _neighbourhoods(shape, batch) else "xla"
    # For the CPU XLA has convolution kernels in single and half precision only. In
    # double precision it runs plain loops, which take twice as long as `im2col`.
    if dtype == jnp.float64:
        return "im2col"
    if shape.filter_size != 3:
        return "direct"
    if shape.upsampled:
        return "folded"
    channels = shape.in_channels, shape.out_channels
    if max(channels) <= NARROW_CHANNELS:
        return "wide4"
    # The transforms of Winograd's algorithms would round to bfloat16 as well.
    if dtype == jnp.bfloat16:
        return "direct"
    if min(channels) < WINOGRAD_CHANNELS:
        return "mixed" if batch > 1 and min(channels) >= BATCH_CHANNELS else "direct"
    return "strip2" if shape.height * shape.width < FEW_PIXELS else "strip4"


def _neighbourhoods(shape: Convolution, batch: int) -> bool:
    """Returns whether the matrix of all neighbourhoods is small enough for a GPU."""
    row = shape.filter_size**2 * shape.in_channels
    return batch * shape.height * shape.width * row <= GPU_NEIGHBOURHOODS


def frames_per_iteration(shapes: Iterable[Convolution], batch: int) -> int:
    """Returns how many frames of a window one iteration of its loop computes.

    More frames make a larger program, which takes longer to compile. It pays on a GPU
    where kernels are small.
    """
    if jax.default_backend() == "cpu":
        return 1
    return GPU_FRAMES if all(_neighbourhoods(s, batch) for s in shapes) else 1


def find(
    shape: Convolution, dtype: DTypeLike = jnp.float32, batch: int = 1
) -> Algorithm:
    """Returns the algorithm that computes a convolution; errors are as in `resolve`.

    If the convolution is upsampled, the algorithm takes the input before enlargement.
    """
    return _for_input(resolve(shape, dtype, batch), shape.upsampled)


@cache  # JAX finds a compiled program again by the identity of the object.
def _for_input(name: str, upsampled: bool) -> Algorithm:
    algorithm = ALGORITHMS[name]
    return of_enlarged(algorithm) if upsampled > algorithm.enlarges else algorithm


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("forward", "backward"),
    meta_fields=("algorithm",),
)
@dataclass(frozen=True)
class Prepared:
    """A kernel, transformed for `algorithm.forward` and `algorithm.input_gradient`."""

    forward: Transformed
    backward: Transformed
    algorithm: Algorithm


def conv2d(
    x: Float[Array, "B H W Ci"],
    kernel: Float[Array, "k k Ci Co"],
    algorithm: str = "auto",
    upsampled: bool = False,
) -> Float[Array, "B H2 W2 Co"]:
    """Convolves x, which is enlarged first if `upsampled`; differentiable in both."""
    scale = 2 if upsampled else 1
    shape = Convolution(
        height=x.shape[1] * scale,
        width=x.shape[2] * scale,
        in_channels=kernel.shape[2],
        out_channels=kernel.shape[3],
        filter_size=kernel.shape[0],
        upsampled=upsampled,
        algorithm=algorithm,
    )
    return _conv2d(x, kernel, find(shape, x.dtype, len(x)))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv2d(x, kernel, algorithm):
    return _conv2d_fwd(x, kernel, algorithm)[0]


def _conv2d_fwd(x, kernel, algorithm):
    # Not _conv2d: forward over reverse fails where a rule calls its own function.
    return _forward(x, _transformed(kernel, False, algorithm), algorithm), (x, kernel)


def _conv2d_bwd(algorithm, residuals, dz):
    x, kernel = residuals
    return (
        _input_gradient(dz, _transformed(kernel, True, algorithm), algorithm),
        filter_gradient(x, dz, kernel.shape[0], algorithm),
    )


_conv2d.defvjp(_conv2d_fwd, _conv2d_bwd)


def prepare(kernel: Float[Array, "k k Ci Co"], algorithm: Algorithm) -> Prepared:
    """Transforms a kernel once, for `apply_sum` to use on many maps."""
    forward, backward = (_transformed(kernel, b, algorithm) for b in (False, True))
    return Prepared(forward, backward, algorithm)


def apply_sum(
    xs: Sequence[Float[Array, "B _ _ _"]], prepared: Sequence[Prepared]
) -> Float[Array, "B H W Co"]:
    """Computes the sum of convolutions with equal outputs; differentiable in xs."""
    first, *rest = (
        _forward(x, p.forward, p.algorithm) for x, p in zip(xs, prepared, strict=True)
    )
    return sum(rest, first)


def side_by_side(x: jax.Array | tuple[jax.Array, ...]) -> jax.Array:
    """Returns one map, or several maps concatenated along their channels."""
    parts = x if isinstance(x, tuple) else (x,)
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


@jax.custom_vjp
def apply_tapped(
    xs: tuple[Float[Array, "B _ _ _"], ...],
    prepared: tuple[Prepared, ...],
    tap: Float[Array, "B H W Co"],
) -> Float[Array, "B H W Co"]:
    """Computes `apply_sum`; the unread `tap` gets the output's cotangent."""
    return _apply_tapped_fwd(xs, prepared, tap)[0]


def _apply_tapped_fwd(xs, prepared, tap):
    del tap
    return apply_sum(xs, prepared), prepared


def _apply_tapped_bwd(prepared, dz):
    dxs = tuple(_input_gradient(dz, p.backward, p.algorithm) for p in prepared)
    return dxs, None, operand(dz)


apply_tapped.defvjp(_apply_tapped_fwd, _apply_tapped_bwd)


@jax.named_scope("conv_filter_gradient")
def filter_gradient(
    x: Float[Array, "N H W Ci"] | tuple[Float[Array, "N H W _"], ...],
    dz: Float[Array, "N H2 W2 Co"],
    filter_size: int,
    algorithm: Algorithm,
) -> Float[Array, "k k Ci Co"]:
    """Computes the kernel's gradient, summed over N images (time and batch) and space.

    x may be several maps, to be concatenated along their channels. dz, the gradients of
    the outputs, has twice the height and width of x where the algorithm `enlarges`.
    """
    dtype = sum_dtype(dz.dtype)
    x, dz = jax.tree.map(operand, (x, dz))
    images, height, width, out_channels = dz.shape
    parts = x if isinstance(x, tuple) else (x,)
    # Number of images that are contracted at once, so that their maps stay in the
    # cache.
    divisors = [d for d in range(1, images + 1) if images % d == 0]
    limit = CHUNK_PIXELS if jax.default_backend() == "cpu" else CHUNK_PIXELS_GPU
    fitting = [d for d in divisors if d * height * width <= limit]
    chunk = max(fitting, default=1)
    if chunk == images or not algorithm.in_chunks:
        total = algorithm.filter_gradient(side_by_side(parts), dz, filter_size)
        return total.astype(dtype)

    def add(total: jax.Array, chunk: tuple) -> tuple[jax.Array, None]:
        x, dz = side_by_side(chunk[:-1]), chunk[-1]
        return total + algorithm.filter_gradient(x, dz, filter_size), None

    in_channels = sum(part.shape[-1] for part in parts)
    shape = (filter_size, filter_size, in_channels, out_channels)
    chunks = [a.reshape(-1, chunk, *a.shape[1:]) for a in (*parts, dz)]
    return lax.scan(add, jnp.zeros(shape, dtype), tuple(chunks))[0]


@jax.named_scope("conv")
def _forward(x: jax.Array, kernel: Transformed, algorithm: Algorithm) -> jax.Array:
    return algorithm.forward(operand(x), kernel).astype(x.dtype)


@jax.named_scope("conv_input_gradient")
def _input_gradient(
    dz: jax.Array, kernel: Transformed, algorithm: Algorithm
) -> jax.Array:
    return algorithm.input_gradient(operand(dz), kernel).astype(dz.dtype)


def _transformed(
    kernel: jax.Array, backward: bool, algorithm: Algorithm
) -> Transformed:
    """Transforms a kernel in its own type; the result is an operand."""
    return jax.tree.map(operand, algorithm.transform(kernel, backward))
