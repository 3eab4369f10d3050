"""Every primitive that sums, in three shapes: what the audit says of it.

    python tests/noise/gpu/sums.py

writes results/gpu/sums.json (a minute; `make gpu` does it too), of which docs/noise.md
has its table and to which `test_compilation` holds the profile `xla_gpu`.
"""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

from prednet_jax import noise

# What is no sum: rounding of operands, and single operations.
APART = ("reduced_precision", "arithmetic")
RECORD = Path(__file__).parents[3] / "results" / "gpu" / "sums.json"
# sm_61, sm_75, sm_90.
GPUS = ("gtx1080", "rtx2080ti", "h100")
_LAYOUT = ("NHWC", "HWIO", "NHWC")
# Without a frame of its own: the line that calls it is the convolution's.
_conv = functools.partial(
    lax.conv_general_dilated,
    window_strides=(1, 1),
    padding="SAME",
    dimension_numbers=_LAYOUT,
)


def _image(x):
    return x.reshape(1, x.shape[0], -1, 4)


def _ids(x):
    return (jnp.abs(x[:, 0]) * 5).astype(jnp.int32)


def _kernel(x):
    return jnp.ones((3, 3, 4, 4)) * x[0, 0]


_MESH = jax.sharding.AbstractMesh((2,), ("x",))
_SPLIT, _WHOLE = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()
# Every primitive that sums, of an array. An entry of the audit is of the function in
# whose lines it is, so that all of them are compiled as one program.
SUMS = {
    "reduce_sum": lambda x: jnp.sum(x, axis=0),
    "dot_general": lambda x: x @ x.T,
    "conv_general_dilated": lambda x: _conv(_image(x), _kernel(x)),
    "conv_input_gradient": lambda x: jax.grad(
        lambda image: jnp.sum(jnp.sin(_conv(image, _kernel(x))) ** 2)
    )(_image(x)),
    "conv_filter_gradient": lambda x: jax.grad(
        lambda kernel: jnp.sum(jnp.sin(_conv(_image(x), kernel)) ** 2)
    )(jnp.ones((3, 3, 4, 4))),
    "cumsum": lambda x: jnp.cumsum(x, axis=0),
    "scatter_add": lambda x: jnp.zeros(x.shape).at[_ids(x)].add(x),
    "segment_sum": lambda x: jax.ops.segment_sum(x, _ids(x), num_segments=5),
    "select_and_scatter_add": lambda x: jax.grad(
        lambda image: jnp.sum(
            lax.reduce_window(image, -jnp.inf, lax.max, *[(1, 2, 2, 1)] * 2, "VALID")
            ** 2
        )
    )(_image(x)),
    "gather_transpose": lambda x: jax.grad(lambda y: jnp.sum(jnp.sin(y[_ids(x)])))(x),
    "reduce_window_sum": lambda x: lax.reduce_window(
        x, 0.0, lax.add, (4, 4), (2, 2), "VALID"
    ),
    "associative_scan": lambda x: lax.associative_scan(jnp.add, x),
    "cholesky": lambda x: jnp.linalg.cholesky(jnp.eye(16) + x[:16, :16] ** 2),
    "fft": lambda x: jnp.abs(jnp.fft.fft(x)),
    # Of the same value on each device XLA makes a product, without any exchange.
    "psum": lambda x: jax.shard_map(
        lambda x: lax.psum(x, "x"), mesh=_MESH, in_specs=_SPLIT, out_specs=_WHOLE
    )(jnp.cos(x)),
}
SHAPES = ((16, 64), (64, 16), (128, 128))


def measured(gpu):
    """For each of SUMS, its primitives, each with all ways in which it varies."""

    def everything(*arrays):
        return [function(x) for function in SUMS.values() for x in arrays]

    def inside(code):
        yield from (line for _, _, line in code.co_lines())
        for constant in code.co_consts:
            if hasattr(constant, "co_lines"):
                yield from inside(constant)

    names = {n: name for name, f in SUMS.items() for n in inside(f.__code__)}
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES]
    report = noise.audit(everything, gpu=gpu, devices=2, advise=False)(*shapes)
    found = {name: {} for name in SUMS}
    for entry in report.entries:
        file, _, line = entry.source.partition(" in ")[0].partition(":")
        if file == Path(__file__).name and entry.kind not in APART:
            ways = found[names[int(line)]].setdefault(entry.primitive, set())
            ways.add(entry.varies)
    return {
        name: {primitive: sorted(ways) for primitive, ways in sorted(rows.items())}
        for name, rows in found.items()
    }


if __name__ == "__main__":
    found = {"jax": jax.__version__, **{gpu: measured(gpu) for gpu in GPUS}}
    RECORD.write_text(json.dumps(found, indent=2) + "\n")
