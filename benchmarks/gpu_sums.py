"""Every primitive that sums, in three shapes: what an audit says of it.

Each function is named after its primitive: an entry of the audit is of the function
that its source names, so that all of them are compiled as one program.
"""

# ruff: noqa: D103 (each function is its name)

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec

from prednet_jax import noise

DEVICES = 2
_MESH = AbstractMesh((DEVICES,), ("x",))
_LAYOUT = ("NHWC", "HWIO", "NHWC")


def reduce_sum(x):
    return jnp.sum(x, axis=0)


def dot_general(x):
    return x @ x.T


def conv_general_dilated(x):
    kernel = jnp.ones((3, 3, 4, 4)) * x[0, 0]
    return lax.conv_general_dilated(
        _image(x), kernel, (1, 1), "SAME", None, None, _LAYOUT
    )


def conv_input_gradient(x):
    kernel = jnp.ones((3, 3, 4, 4)) * x[0, 0]

    def loss(image):
        y = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", None, None, _LAYOUT)
        return jnp.vdot(y, jnp.sin(y))

    return jax.grad(loss)(_image(x))


def conv_filter_gradient(x):
    def loss(kernel):
        image = _image(x)
        y = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", None, None, _LAYOUT)
        return jnp.vdot(y, jnp.sin(y))

    return jax.grad(loss)(jnp.ones((3, 3, 4, 4)))


def cumsum(x):
    return jnp.cumsum(x, axis=0)


def scatter_add(x):
    return jnp.zeros(x.shape).at[_ids(x)].add(x)


def segment_sum(x):
    return jax.ops.segment_sum(x, _ids(x), num_segments=5)


def select_and_scatter_add(x):
    def loss(image):
        sizes = (1, 2, 2, 1), (1, 2, 2, 1)
        return jnp.sum(
            lax.reduce_window(image, -jnp.inf, lax.max, *sizes, "VALID") ** 2
        )

    return jax.grad(loss)(_image(x))


def gather_transpose(x):
    ids = _ids(x)
    return jax.grad(lambda x: jnp.sum(jnp.sin(x[ids])))(x)


def reduce_window_sum(x):
    return lax.reduce_window(x, 0.0, lax.add, (4, 4), (2, 2), "VALID")


def associative_scan(x):
    return lax.associative_scan(jnp.add, x)


def cholesky(x):
    return jnp.linalg.cholesky(jnp.eye(16) + x[:16, :16] ** 2)


def fft(x):
    return jnp.abs(jnp.fft.fft(x))


def psum(x):
    # Of the same value on each device XLA makes a product, without any exchange.
    spread = jax.shard_map(
        lambda x: lax.psum(x, "x"),
        mesh=_MESH,
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec(),
    )
    return spread(jnp.cos(x))


FUNCTIONS = (
    reduce_sum, dot_general, conv_general_dilated, conv_input_gradient,
    conv_filter_gradient, cumsum, scatter_add, segment_sum, select_and_scatter_add,
    gather_transpose, reduce_window_sum, associative_scan, cholesky, fft, psum,
)  # fmt: skip
SHAPES = ((16, 64), (64, 16), (128, 128))
GPUS = ("gtx1080", "rtx2080ti", "h100")


def _image(x):
    return x.reshape(1, x.shape[0], -1, 4)


def _ids(x):
    return (jnp.abs(x[:, 0]) * 5).astype(jnp.int32)


def everything(*arrays: Any) -> list[Any]:
    """All functions of all arrays."""
    return [function(x) for function in FUNCTIONS for x in arrays]


def measured(gpu: str) -> dict[str, dict[str, list[str]]]:
    """For each function, its primitives, each with all ways in which it varies."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]
    report = noise.audit(everything, gpu=gpu, devices=DEVICES)(*shapes)
    found: dict[str, dict[str, set[str]]] = {f.__name__: {} for f in FUNCTIONS}
    lines = {
        f"{f.__code__.co_filename.rpartition('/')[2]}:{line}": f.__name__
        for f in FUNCTIONS
        for code in (f.__code__, *_inside(f.__code__))
        for _, _, line in code.co_lines()
    }
    for entry in report.entries:
        name = lines.get(entry.source.partition(" in ")[0])
        if name is not None and entry.kind != "reduced_precision":
            found[name].setdefault(entry.primitive, set()).add(entry.varies)
    return {
        name: {primitive: sorted(ways) for primitive, ways in sorted(rows.items())}
        for name, rows in found.items()
    }


def _inside(code: Any) -> list[Any]:
    return [x for x in code.co_consts if hasattr(x, "co_lines")]
