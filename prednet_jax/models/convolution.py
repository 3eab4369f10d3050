"""Interchangeable algorithms for the networks' convolutions.

Every convolution has an odd k x k kernel, stride 1 and zero 'same' padding, on
`[B, H, W, C]` maps with `[k, k, in, out]` kernels; an `upsampled` one sees the
nearest-neighbour x2 enlargement of its input. They agree up to rounding, so each one is
also a fixed other order of the same sums: an experimental arm.

    xla        XLA's own convolution and its own gradients (the choice on GPUs)
    direct     XLA's convolution for outputs and input gradients, `wide2` for filters
    im2col     one matrix product over k k C neighbourhoods
    shifted    k k matrix products over shifted maps
    wide2/4    2 or 4 neighbouring outputs at once as further channels. More
               multiplications, by (k + 1)/k or (k + 3)/k, but a matrix product wide
               enough for the processor's registers, and fewer copies of each pixel in
               the neighbourhoods of the filter gradient
    strip2/4   Winograd F(2,3)/F(4,3) along the width, XLA along the height; filter
               gradients as winograd2; 3x3 only
    winograd2/4  Winograd F(2,3)/F(4,3) along both axes; 3x3 only
    folded     the enlargement folded into the kernel; 3x3 and `upsampled` only

Three ways to use them:
    conv2d(x, kernel)                differentiable in both
    prepare(kernel) + apply(x, ...)  kernel transformed once, for many maps in a scan
    filter_gradient(x, dz)           the kernel's gradient, one contraction over
                                     images (time and batch) and space

Each runs in a named scope that begins with `conv`, by which the noise profile
`chainer_cudnn` knows a convolution that is written as matrix products.

conv2d and apply_tapped carry their own reverse rules (the gradients are again fast
algorithms, not transposed slices): forward over reverse works, forward mode alone does
not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from prednet_jax.models import winograd

ALGORITHMS = (
    "xla",
    "direct",
    "im2col",
    "shifted",
    "wide2",
    "wide4",
    "strip2",
    "strip4",
    "winograd2",
    "winograd4",
    "folded",
)
# A kernel, or the parts of a transformed one.
Transformed = Any
# Pixels of one chunk of a filter gradient, measured: see `_chunk`.
_CHUNK_PIXELS = 12_000
_FILTERINGS = {
    "strip2": winograd.F2,
    "strip4": winograd.F4,
    "winograd2": winograd.F2,
    "winograd4": winograd.F4,
}
_WIDTHS = {"wide2": 2, "wide4": 4}
# Outputs that share a neighbourhood in the filter gradient.
_FILTER_WIDTHS = {"im2col": 1, "direct": 2} | _WIDTHS


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("forward", "backward"),
    meta_fields=("algorithm", "upsampled"),
)
@dataclass(frozen=True)
class Prepared:
    """A kernel in the form that its algorithm multiplies with.

    Attributes:
      forward: the (transformed) kernel of the convolution.
      backward: the (transformed) kernel of the input gradient.
      algorithm: one of `ALGORITHMS`.
      upsampled: whether the input is enlarged x2 first.
    """

    forward: Transformed
    backward: Transformed
    algorithm: str
    upsampled: bool


def check(algorithm: str, filter_size: int, upsampled: bool = False) -> str:
    """Returns the algorithm if it can do the convolution.

    Raises:
      ValueError: the algorithm is unknown, or not for this filter size or input.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"convolution={algorithm!r}: expected auto or one of "
            f"{', '.join(ALGORITHMS)}"
        )
    if algorithm in (*_FILTERINGS, "folded") and filter_size != 3:
        raise ValueError(
            f"convolution={algorithm!r} with filter size {filter_size}: expected "
            "filter size 3, or one of auto, xla, direct, im2col, shifted, wide2, wide4"
        )
    if algorithm == "folded" and not upsampled:
        raise ValueError(
            "convolution='folded': expected another for an input that is not enlarged"
        )
    return algorithm


def choose(
    height: int,
    width: int,
    in_channels: int,
    out_channels: int,
    filter_size: int,
    backend: str,
    upsampled: bool = False,
    dtype: DTypeLike = jnp.float32,
) -> str:
    """The fastest algorithm measured for a shape.

    Args:
      height: rows of the output map.
      width: columns of the output map.
      in_channels: channels of the input.
      out_channels: channels of the output.
      filter_size: odd k.
      backend: platform name, as `jax.default_backend()` gives it.
      upsampled: whether the input is enlarged x2 first.
      dtype: of the maps and the kernel.

    Returns:
      One of `ALGORITHMS`.
    """
    if backend != "cpu":
        return "xla"
    # XLA has convolution kernels for the CPU in single and half precision only; in
    # double it runs plain loops, and takes twice as long as the matrix products.
    if dtype == jnp.float64:
        return "im2col"
    if filter_size != 3:
        return "direct"
    if upsampled:
        return "folded"
    if max(in_channels, out_channels) <= 16:
        return "wide4"
    # Below, transforming the maps costs more than the products saved.
    if min(in_channels, out_channels) < 96:
        return "direct"
    # Few pixels: what counts is reading the kernel, which Winograd enlarges.
    return "strip2" if height * width < 600 else "strip4"


def resolve(
    algorithm: str,
    height: int,
    width: int,
    in_channels: int,
    out_channels: int,
    filter_size: int,
    upsampled: bool = False,
    dtype: DTypeLike = jnp.float32,
) -> str:
    """An algorithm's name for a shape: `auto` is chosen, the others are checked."""
    if algorithm != "auto":
        return check(algorithm, filter_size, upsampled)
    return choose(
        height,
        width,
        in_channels,
        out_channels,
        filter_size,
        jax.default_backend(),
        upsampled,
        dtype,
    )


def conv2d(
    x: Float[Array, "B H W Ci"],
    kernel: Float[Array, "k k Ci Co"],
    algorithm: str = "auto",
    upsampled: bool = False,
) -> Float[Array, "B H2 W2 Co"]:
    """Convolves; differentiable in x and in the kernel.

    Args:
      x: input `[B, H, W, Ci]`.
      kernel: `[k, k, Ci, Co]`, k odd.
      algorithm: `auto` or one of `ALGORITHMS`.
      upsampled: whether x is enlarged x2 first.

    Returns:
      `[B, H, W, Co]`, twice the height and width where `upsampled`.

    Raises:
      ValueError: the algorithm cannot do this convolution.
    """
    scale = 2 if upsampled else 1
    height, width = x.shape[1] * scale, x.shape[2] * scale
    filter_size, _, inputs, outputs = kernel.shape
    algorithm = resolve(
        algorithm, height, width, inputs, outputs, filter_size, upsampled, x.dtype
    )
    return _conv2d(x, kernel, algorithm, upsampled)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _conv2d(x, kernel, algorithm, upsampled):
    return _forward(x, _transform(kernel, algorithm), algorithm, upsampled)


def _conv2d_fwd(x, kernel, algorithm, upsampled):
    # Not _conv2d itself: a rule that calls its own function has no forward mode.
    return _forward(x, _transform(kernel, algorithm), algorithm, upsampled), (x, kernel)


def _conv2d_bwd(algorithm, upsampled, residuals, dz):
    x, kernel = residuals
    backward = _transform_backward(kernel, algorithm)
    return (
        _input_gradient(dz, backward, algorithm, upsampled),
        filter_gradient(x, dz, kernel.shape[0], algorithm, upsampled),
    )


_conv2d.defvjp(_conv2d_fwd, _conv2d_bwd)


def prepare(
    kernel: Float[Array, "k k Ci Co"], algorithm: str, upsampled: bool = False
) -> Prepared:
    """Transforms a kernel once, for `apply` to use on many maps.

    Args:
      kernel: `[k, k, Ci, Co]`.
      algorithm: one of `ALGORITHMS` (not `auto`: no map is known here).
      upsampled: whether the inputs are enlarged x2 first.

    Raises:
      ValueError: the algorithm cannot do this convolution.
    """
    check(algorithm, kernel.shape[0], upsampled)
    return Prepared(
        _transform(kernel, algorithm),
        _transform_backward(kernel, algorithm),
        algorithm,
        upsampled,
    )


def apply(x: Float[Array, "B H W Ci"], prepared: Prepared) -> Float[Array, "B H W Co"]:
    """Convolves with a prepared kernel (of constant weights: differentiable in x)."""
    return _forward(x, prepared.forward, prepared.algorithm, prepared.upsampled)


def apply_sum(
    xs: Sequence[Float[Array, "B _ _ _"]], prepared: Sequence[Prepared]
) -> Float[Array, "B H W Co"]:
    """The sum of several convolutions with equal outputs."""
    first, *rest = (apply(x, p) for x, p in zip(xs, prepared, strict=True))
    return sum(rest, first)


def side_by_side(x: jax.Array | tuple[jax.Array, ...]) -> jax.Array:
    """One map from one or several, their channels after each other."""
    if not isinstance(x, tuple):
        return x
    return x[0] if len(x) == 1 else jnp.concatenate(x, axis=-1)


@jax.custom_vjp
def apply_tapped(
    xs: tuple[Float[Array, "B _ _ _"], ...],
    prepared: tuple[Prepared, ...],
    tap: Float[Array, "B H W Co"],
) -> Float[Array, "B H W Co"]:
    """`apply_sum`; the cotangent of `tap`, which is not read, is that of the output."""
    del tap
    return apply_sum(xs, prepared)


def _apply_tapped_fwd(xs, prepared, tap):
    # Not apply_tapped itself: a rule that calls its own function has no forward mode.
    del tap
    return apply_sum(xs, prepared), prepared


def _apply_tapped_bwd(prepared, dz):
    dxs = tuple(
        _input_gradient(dz, p.backward, p.algorithm, p.upsampled) for p in prepared
    )
    return dxs, None, dz


apply_tapped.defvjp(_apply_tapped_fwd, _apply_tapped_bwd)


@jax.named_scope("conv_filter_gradient")
def filter_gradient(
    x: Float[Array, "N H W Ci"] | tuple[Float[Array, "N H W _"], ...],
    dz: Float[Array, "N H2 W2 Co"],
    filter_size: int,
    algorithm: str = "auto",
    upsampled: bool = False,
) -> Float[Array, "k k Ci Co"]:
    """The kernel's gradient, summed over N images (time and batch) and space.

    Args:
      x: inputs `[N, H, W, Ci]`, or several whose channels follow each other.
      dz: gradients of the outputs `[N, H, W, Co]`, twice as high and wide where
        `upsampled`.
      filter_size: odd k.
      algorithm: `auto` or one of `ALGORITHMS`.
      upsampled: whether the inputs are enlarged x2 first.

    Raises:
      ValueError: the algorithm cannot do this convolution.
    """
    images, height, width, out_channels = dz.shape
    parts = x if isinstance(x, tuple) else (x,)
    in_channels = sum(part.shape[-1] for part in parts)
    algorithm = resolve(
        algorithm,
        height,
        width,
        in_channels,
        out_channels,
        filter_size,
        upsampled,
        dz.dtype,
    )
    one = partial(
        _filter_gradient,
        filter_size=filter_size,
        algorithm=algorithm,
        upsampled=upsampled,
    )
    chunk = _chunk(images, height * width)
    if chunk == images or algorithm == "xla":
        return one(side_by_side(parts), dz)

    def add(total: jax.Array, chunk: tuple) -> tuple[jax.Array, None]:
        *parts, dz = chunk
        return total + one(side_by_side(tuple(parts)), dz), None

    shape = (filter_size, filter_size, in_channels, out_channels)
    chunks = [a.reshape(-1, chunk, *a.shape[1:]) for a in (*parts, dz)]
    return lax.scan(add, jnp.zeros(shape, dz.dtype), tuple(chunks))[0]


def _chunk(images: int, pixels: int) -> int:
    """Images contracted at once: the transformed maps should stay in the cache.

    The largest divisor of the number of images with at most `_CHUNK_PIXELS` pixels.
    """
    fitting = [d for d in range(1, images + 1) if images % d == 0]
    return max([d for d in fitting if d * pixels <= _CHUNK_PIXELS], default=1)


def _filter_gradient(
    x: jax.Array, dz: jax.Array, *, filter_size: int, algorithm: str, upsampled: bool
) -> jax.Array:
    out_channels = dz.shape[-1]
    if algorithm == "folded":
        x, dz = lax.optimization_barrier((x, dz))
        return winograd.tile_filter_gradient(x, dz, winograd.ENLARGED)
    if upsampled:
        x = upsample(x)
    if algorithm == "xla":
        kernel = jax.ShapeDtypeStruct(
            (filter_size, filter_size, x.shape[-1], out_channels), x.dtype
        )
        (gradient,) = jax.linear_transpose(lambda k: xla(x, k), kernel)(dz)
        return gradient
    if algorithm in _FILTERINGS:
        f = winograd.F4 if algorithm == "winograd4" else winograd.F2
        x, dz = lax.optimization_barrier((x, dz))
        return winograd.tile_filter_gradient(x, dz, f)
    if algorithm in _FILTER_WIDTHS:
        # A 1x1 neighbourhood has nothing to share.
        m = 1 if filter_size == 1 else _FILTER_WIDTHS[algorithm]
        return _wide_filter_gradient(x, dz, filter_size, m)
    products = [winograd.contract(v, dz) for v in _shifts(x, filter_size)]
    shape = (filter_size, filter_size, x.shape[-1], out_channels)
    return jnp.stack(products).reshape(shape)


def _wide_filter_gradient(
    x: jax.Array, dz: jax.Array, filter_size: int, m: int
) -> jax.Array:
    """The gradient of `_widen`'s kernel, its m places summed.

    One product of the neighbourhoods of m outputs, k rows of k + m - 1 pixels, with the
    m outputs side by side. A pixel is copied k (k + m - 1) / m times instead of k k.
    """
    k, reach = filter_size, filter_size // 2
    images, height, width, inputs = x.shape
    blocks = -(-width // m)
    beyond = blocks * m - width
    # A neighbourhood begins with a block of m pixels and ends in one of those after it.
    after = -(-(k - 1) // m)
    end = after * m + beyond - reach
    x = lax.pad(
        x,
        jnp.zeros((), x.dtype),
        ((0, 0, 0), (reach, reach, 0), (reach, end, 0), (0, 0, 0)),
    ).reshape(images, height + 2 * reach, blocks + after, m * inputs)
    columns = [
        x[:, :, i : i + blocks, : min(m, k + m - 1 - i * m) * inputs]
        for i in range(after + 1)
    ]
    rows = jnp.concatenate(columns, -1)
    neighbourhoods = jnp.concatenate([rows[:, i : i + height] for i in range(k)], -1)
    dz = jnp.pad(dz, ((0, 0), (0, 0), (0, beyond), (0, 0)))
    dz = dz.reshape(images, height, blocks, -1)
    wide = winograd.contract(neighbourhoods, dz)
    wide = wide.reshape(k, k + m - 1, inputs, m, -1)
    places = [wide[:, i : i + k, :, i] for i in range(m)]
    return sum(places[1:], places[0])


def upsample(x: Float[Array, "B H W C"]) -> Float[Array, "B 2H 2W C"]:
    """Nearest-neighbour x2 enlargement."""
    b, h, w, c = x.shape
    x = jnp.broadcast_to(x[:, :, None, :, None, :], (b, h, 2, w, 2, c))
    return x.reshape(b, 2 * h, 2 * w, c)


def _transform(kernel: jax.Array, algorithm: str) -> Transformed:
    if algorithm == "folded":
        return winograd.phases(kernel)
    if algorithm.startswith("strip"):
        return winograd.transform_strip(kernel, _FILTERINGS[algorithm])
    if algorithm.startswith("winograd"):
        return winograd.transform_tile(kernel, _FILTERINGS[algorithm])
    if algorithm in _WIDTHS:
        return _widen(kernel, _WIDTHS[algorithm])
    return kernel


def _transform_backward(kernel: jax.Array, algorithm: str) -> Transformed:
    if algorithm == "folded":
        return winograd.enlarged_backward(kernel)
    # The input gradient is a convolution with the kernel turned by 180 degrees.
    return _transform(kernel[::-1, ::-1].swapaxes(2, 3), algorithm)


@jax.named_scope("conv")
def _forward(
    x: jax.Array, kernel: Transformed, algorithm: str, upsampled: bool
) -> jax.Array:
    if algorithm == "folded":
        return winograd.enlarged(x, kernel)
    if upsampled:
        x = upsample(x)
    if algorithm in ("xla", "direct"):
        return xla(x, kernel)
    if algorithm in _WIDTHS:
        return _wide(x, kernel, _WIDTHS[algorithm])
    if algorithm in _FILTERINGS:
        f = _FILTERINGS[algorithm]
        run = winograd.strip if algorithm.startswith("strip") else winograd.tile
        # Without the barriers XLA computes what feeds the transform (gates, errors)
        # anew within each of its many outputs, which takes long to compile as well.
        return lax.optimization_barrier(run(lax.optimization_barrier(x), kernel, f))
    views = _shifts(x, kernel.shape[0])
    if algorithm == "im2col":
        flat = kernel.reshape(-1, kernel.shape[-1])
        return jnp.einsum("bhwi,io->bhwo", jnp.concatenate(views, -1), flat)
    taps = kernel.reshape(-1, *kernel.shape[2:])
    products = [
        jnp.einsum("bhwi,io->bhwo", v, t) for v, t in zip(views, taps, strict=True)
    ]
    return sum(products[1:], products[0])


@jax.named_scope("conv_input_gradient")
def _input_gradient(
    dz: jax.Array, backward: Transformed, algorithm: str, upsampled: bool
) -> jax.Array:
    if algorithm == "folded":
        return winograd.enlarged_input_gradient(dz, backward)
    dx = _forward(dz, backward, algorithm, upsampled=False)
    if not upsampled:
        return dx
    b, h, w, c = dx.shape
    return dx.reshape(b, h // 2, 2, w // 2, 2, c).sum((2, 4))


def xla(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """XLA's own convolution, `[B, H, W, Ci]` with `[k, k, Ci, Co]`."""
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _widen(kernel: jax.Array, m: int) -> jax.Array:
    """The kernel at m neighbouring places: `[k, k + m - 1, in, m out]`."""
    places = [
        jnp.pad(kernel, ((0, 0), (i, m - 1 - i), (0, 0), (0, 0))) for i in range(m)
    ]
    return jnp.concatenate(places, axis=-1)


def _wide(x: jax.Array, kernel: jax.Array, m: int) -> jax.Array:
    """Convolves with a kernel of `_widen`, m outputs along the width at a step."""
    b, height, width, _ = x.shape
    reach = kernel.shape[0] // 2
    beyond = -width % m
    y = lax.conv_general_dilated(
        x,
        kernel,
        (1, m),
        ((reach, reach), (reach, reach + beyond)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return y.reshape(b, height, width + beyond, -1)[:, :, :width]


def _shifts(x: jax.Array, filter_size: int) -> list[jax.Array]:
    """The k k zero-padded shifts of the maps, in the order of the kernel's taps."""
    reach = filter_size // 2
    _, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)))
    return [
        padded[:, i : i + height, j : j + width]
        for i in range(filter_size)
        for j in range(filter_size)
    ]
