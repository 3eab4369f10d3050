"""The interpreter: instructions, and what it must refuse.

Loops, shuffles, shared memory and vectors are those of the kernels in `test_replay`,
whose sums of integers are exact.
"""

import numpy as np
import pytest

from prednet_jax.noise.gpu import ptx

# Instructions of tests: a choice by a comparison, a guard.
LESS = "setp.{} %p1, $a, $b; selp.b32 $d, $a, $b, %p1;"
SOME = "setp.gt.u32 %p1, %r90, 3; @%p1"
HEAD = ".version 8.8\n.target sm_61\n.address_size 64\n"


def launch(body, arrays, blocks=1):
    """Runs a body whose parameters are the arrays; registers of all kinds are there."""
    names = [f"p{i}" for i in range(len(arrays))]
    parameters = ",\n".join(f"\t.param .u64 .ptr .align 16 {n}" for n in names)
    loads = "\n".join(
        f"ld.param.b64 %rd{90 + i}, [{n}];\ncvta.to.global.u64 %rd{i}, %rd{90 + i};"
        for i, n in enumerate(names)
    )
    text = f"""{HEAD}
.visible .entry k(
{parameters}
)
.reqntid 32, 1, 1
{{
\t.reg .pred %p<9>;
\t.reg .b16 %rs<9>;
\t.reg .b32 %r<99>;
\t.reg .b64 %rd<99>;
{loads}
mov.u32 %r90, %tid.x;
mov.u32 %r91, %ctaid.x;
mad.lo.s32 %r92, %r91, 32, %r90;
{body}
\tret;

}}
"""
    memory = ptx.Memory([a.nbytes for a in arrays])
    for i, array in enumerate(arrays):
        memory.view(i, array.dtype)[:] = array
    kernel = ptx.parse(text)["k"]
    arguments = tuple(range(len(arrays)))
    ptx.run(
        ptx.InterpreterLaunch(kernel, (blocks, 1, 1), (32, 1, 1), arguments), memory
    )
    return [memory.view(i, a.dtype) for i, a in enumerate(arrays)]


def elementwise(operation, *arrays):
    """The results of `operation`, written with a, b, c for operands and d for its."""
    for i, name in enumerate("abcd"):
        operation = operation.replace(f"${name}", f"%r{i}")
    loads = "\n".join(
        f"add.s64 %rd{50 + i}, %rd{i}, %rd40;\nld.global.b32 %r{i}, [%rd{50 + i}];"
        for i in range(len(arrays))
    )
    n = len(arrays)
    body = f"""mul.wide.u32 %rd40, %r92, 4;
{loads}
{operation}
add.s64 %rd60, %rd{n}, %rd40;
st.global.b32 [%rd60], %r3;"""
    result = np.zeros_like(arrays[0])
    return launch(body, [*arrays, result], blocks=len(result) // 32)[-1]


def numbers(count=2048):
    """Float32 of all magnitudes, denormals, zeros, infinities and NaN among them."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 2**32, count, np.uint32).view(np.float32)
    x[: count // 2] = generator.normal(size=count // 2)
    x[:6] = 0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45
    return generator.permutation(x)


def test_addition_is_ieee():
    a, b = numbers(), numbers()[::-1].copy()
    with np.errstate(all="ignore"):
        wanted = a + b
    result = elementwise("add.rn.f32 $d, $a, $b;", a, b)
    np.testing.assert_array_equal(result, wanted)
    kept = ~np.isnan(wanted)  # zeros too have their sign
    np.testing.assert_array_equal(np.signbit(result)[kept], np.signbit(wanted)[kept])


def signed(function, a, b):
    return function(a.view(np.int32), b.view(np.int32)).view(np.uint32)


def test_integers_wrap_and_shift():
    for operation, expected in (
        ("mad.lo.s32 $d, $a, $b, 7;", lambda a, b: a * b + 7),
        ("mul.hi.u32 $d, $a, $b;", lambda a, b: a.astype(np.uint64) * b >> 32),
        ("shr.u32 $d, $a, 5;", lambda a, b: a >> 5),
        ("shr.s32 $d, $a, 5;", lambda a, b: (a.view(np.int32) >> 5).view(np.uint32)),
        ("shl.b32 $d, $a, 40;", lambda a, b: a * 0),
        ("bfe.u32 $d, $a, 16, 3;", lambda a, b: a >> 16 & 7),
        ("and.b32 $d, $a, -8;", lambda a, b: a & 0xFFFFFFF8),
        (LESS.format("lt.s32"), lambda a, b: signed(np.minimum, a, b)),
        (LESS.format("gt.u32"), np.maximum),
    ):
        a, b = np.random.default_rng(2).integers(0, 2**32, (2, 256), np.uint32)
        np.testing.assert_array_equal(elementwise(operation, a, b), expected(a, b))


def test_what_is_unknown_or_undefined_is_an_error():
    for body, message in (
        ("ex2.approx.f32 %r1, %r90;", "ex2.approx"),
        ("add.rn.ftz.f32 %r1, %r90, %r90;", "add.rn.ftz"),
        ("atom.global.add.f32 %r1, [%rd0], %r90;", "atom"),
        ("ld.global.b32 %r1, [%rd0+4096];", "outside of memory"),
        ("ld.global.b32 %r1, [%rd0+2];", "not aligned"),
        ("st.global.b32 [%rd0], %r90;", "a race"),
        (f"{SOME} shfl.sync.down.b32 %r1, %r90, 1, 31, -1;", "lanes"),
    ):
        body = body.replace("; ", ";\n")
        with pytest.raises(ptx.PtxError, match=message):
            launch(body, [np.zeros(8, np.uint32)])
