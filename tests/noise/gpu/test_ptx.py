"""The interpreter: instructions, elementwise kernels, and what it must refuse."""

import numpy as np
import pytest

from prednet_jax.noise.gpu import ptx

# Instructions of tests: a choice by a comparison, a guard.
LESS = "setp.{} %p1, $a, $b; selp.b32 $d, $a, $b, %p1;"
SOME = "setp.gt.u32 %p1, %r90, 3; @%p1"
HEAD = ".version 8.8\n.target sm_61\n.address_size 64\n"


def launch(body, arrays, *, threads=32, blocks=1, shared=""):
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
.reqntid {threads}, 1, 1
{{
\t.reg .pred %p<9>;
\t.reg .b16 %rs<9>;
\t.reg .b32 %r<99>;
\t.reg .b64 %rd<99>;
{shared}
{loads}
mov.u32 %r90, %tid.x;
mov.u32 %r91, %ctaid.x;
mad.lo.s32 %r92, %r91, {threads}, %r90;
{body}
\tret;

}}
"""
    memory = ptx.Memory([a.nbytes for a in arrays])
    for i, array in enumerate(arrays):
        memory.view(i, array.dtype)[:] = array
    kernel = ptx.parse(text)["k"]
    arguments = tuple(range(len(arrays)))
    ptx.run(ptx.Launch(kernel, (blocks, 1, 1), (threads, 1, 1), arguments), memory)
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


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("mad.lo.s32 $d, $a, $b, 7;", lambda a, b: a * b + 7),
        ("mul.hi.u32 $d, $a, $b;", lambda a, b: (a.astype(np.uint64) * b >> 32)),
        ("shr.u32 $d, $a, 5;", lambda a, b: a >> 5),
        ("shr.s32 $d, $a, 5;", lambda a, b: (a.view(np.int32) >> 5).view(np.uint32)),
        ("shl.b32 $d, $a, 40;", lambda a, b: a * 0),
        ("bfe.u32 $d, $a, 16, 3;", lambda a, b: a >> 16 & 7),
        ("and.b32 $d, $a, -8;", lambda a, b: a & 0xFFFFFFF8),
        (LESS.format("lt.s32"), lambda a, b: signed(np.minimum, a, b)),
        (LESS.format("gt.u32"), np.maximum),
    ],
)  # fmt: skip
def test_integers_wrap_and_shift(operation, expected):
    a, b = np.random.default_rng(2).integers(0, 2**32, (2, 256), np.uint32)
    np.testing.assert_array_equal(elementwise(operation, a, b), expected(a, b))


def test_a_loop_that_each_thread_leaves_when_it_likes():
    """Collatz: threads diverge and meet again; compared with Python."""
    body = """
mov.b32 %r3, 0;
add.s32 %r1, %r92, 1;
$L_loop:
setp.eq.b32 %p1, %r1, 1;
@%p1 bra $L_end;
and.b32 %r2, %r1, 1;
setp.eq.b32 %p2, %r2, 0;
@%p2 bra $L_even;
mad.lo.s32 %r1, %r1, 3, 1;
bra.uni $L_next;
$L_even:
shr.u32 %r1, %r1, 1;
$L_next:
add.s32 %r3, %r3, 1;
bra.uni $L_loop;
$L_end:
mul.wide.u32 %rd40, %r92, 4;
add.s64 %rd41, %rd0, %rd40;
st.global.b32 [%rd41], %r3;"""
    (steps,) = launch(body, [np.zeros(96, np.uint32)], blocks=3)

    def collatz(n):
        return 0 if n == 1 else 1 + collatz(3 * n + 1 if n % 2 else n // 2)

    assert steps.tolist() == [collatz(n) for n in range(1, 97)]


SHARED = "\t.shared .align 4 .b8 s[256];"
REVERSE = """
mul.wide.u32 %rd40, %r90, 4;
mov.b64 %rd41, s;
add.s64 %rd42, %rd41, %rd40;
st.shared.b32 [%rd42], %r92;
bar.sync 0;
sub.s32 %r1, 63, %r90;
mul.wide.u32 %rd43, %r1, 4;
add.s64 %rd44, %rd41, %rd43;
ld.shared.b32 %r2, [%rd44];
shfl.sync.down.b32 %r3, %r2, 1, 31, -1;
mul.wide.u32 %rd45, %r92, 4;
add.s64 %rd46, %rd0, %rd45;
st.global.b32 [%rd46], %r3;"""


def test_shared_memory_and_shuffles():
    (result,) = launch(
        REVERSE, [np.zeros(128, np.uint32)], threads=64, blocks=2, shared=SHARED
    )
    # Each lane of a warp has its neighbour's, the last one its own.
    order = [62 - i if i % 32 < 31 else 63 - i for i in range(64)]
    order = np.array(order)
    np.testing.assert_array_equal(result, [*order, *order + 64])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ex2.approx.f32 %r1, %r90;", "ex2.approx"),
        ("add.rn.ftz.f32 %r1, %r90, %r90;", "add.rn.ftz"),
        ("atom.global.add.f32 %r1, [%rd0], %r90;", "atom"),
        ("ld.global.b32 %r1, [%rd0+4096];", "outside of memory"),
        ("ld.global.b32 %r1, [%rd0+2];", "not aligned"),
        ("st.global.b32 [%rd0], %r90;", "a race"),
        (f"{SOME} shfl.sync.down.b32 %r1, %r90, 1, 31, -1;", "lanes"),
    ],
)  # fmt: skip
def test_what_is_unknown_or_undefined_is_an_error(body, message):
    body = body.replace("; ", ";\n")
    with pytest.raises(ptx.PtxError, match=message):
        launch(body, [np.zeros(8, np.uint32)])


def test_a_vector_load_reads_neighbours():
    body = """
shl.b32 %r1, %r90, 1;
mul.wide.u32 %rd40, %r1, 4;
add.s64 %rd41, %rd0, %rd40;
ld.global.nc.v2.b32 {%r2, %r3}, [%rd41];
add.rn.f32 %r4, %r2, %r3;
mul.wide.u32 %rd42, %r90, 4;
add.s64 %rd43, %rd1, %rd42;
st.global.b32 [%rd43], %r4;"""
    x = numbers(64)
    _, result = launch(body, [x, np.zeros(32, np.float32)])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(result, x[::2] + x[1::2])
