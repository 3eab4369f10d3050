"""Orders read from kernels: the replay has the bits of the kernel, interpreted."""

import functools
import math
import re

import jax
import numpy as np
import pytest

from prednet_jax.noise.gpu import orders, ptx, replay
from tests.noise.gpu import reductions

GOLDEN = reductions.golden()
OLDER = ("gtx1080", "rtx2080ti")
golden = pytest.mark.parametrize(
    ("gpu", "case"), list(GOLDEN), ids=[f"{g}-{c.name}" for g, c in GOLDEN]
)


@functools.cache
def order(gpu, case):
    return case.read(GOLDEN[gpu, case])


@golden
def test_the_order_is_read(gpu, case):
    """Its sums have the bits of the interpreted kernel, on other arrays too."""
    x = case.drawn(0)
    result = order(gpu, case).sum(case.columns(x))
    assert result.tobytes() == reductions.interpreted(GOLDEN[gpu, case], x).tobytes()
    # Of integers below 2^24 every order gives the exact sum.
    whole = np.rint(4 * case.columns(x))
    np.testing.assert_array_equal(order(gpu, case).sum(whole), whole.sum(0))


@pytest.mark.parametrize(
    "case", [c for c in reductions.CHOSEN if c.arguments == 1], ids=lambda c: c.name
)
def test_the_sum_in_jax_has_the_kernels_bits(case):
    (x,) = case.drawn(0)
    wanted = reductions.interpreted(GOLDEN["h100", case], [x])
    add = jax.jit(lambda x: orders.in_order(order("h100", case), case.axes, x))
    assert np.asarray(add(case.term(x))).tobytes() == wanted.tobytes()


def without_a_shuffle(compiled, number):
    """The kernels with one shuffle left out: its lane reads itself."""
    shuffle = re.compile(r"shfl\.sync\.down\.b32 \t(%r\d+), (%r\d+), \d+, 31, -1;")
    texts = {}
    for name, text in compiled.ptx.items():
        found = list(shuffle.finditer(text))
        if number < len(found):
            one = found[number]
            start, end = one.span()
            text = f"{text[:start]}mov.b32 {one[1]}, {one[2]};{text[end:]}"
        number -= len(found)
        texts[name] = text
    return compiled._replace(ptx=texts)


def test_one_shuffle_left_out_is_noticed():
    key = next(k for k in GOLDEN if k[1].name == "same_1x24x32x12_over_1x2")
    _, case = key
    x = case.drawn(0)
    wanted = order(*key).sum(case.columns(x)).tobytes()
    assert reductions.interpreted(GOLDEN[key], x).tobytes() == wanted
    for number in range(5):
        mutant = without_a_shuffle(GOLDEN[key], number)
        assert reductions.interpreted(mutant, x).tobytes() != wanted
        with pytest.raises(ptx.PtxError, match="lacks some of its terms"):
            case.read(mutant)


def exchanged(rounds):
    """Two terms of different chains change places."""
    rounds[0][0, 0], rounds[0][1, 1] = rounds[0][1, 1], rounds[0][0, 0]


def without_a_step(rounds):
    """What a shuffle brings is not added."""
    rounds[1][1] = replay.MINUS_ZERO


@pytest.mark.parametrize("mutation", [exchanged, without_a_step])
def test_a_mutated_schedule_is_noticed(mutation, monkeypatch):
    (_, case), compiled = next(iter(GOLDEN.items()))
    read = replay._Sums.rounds

    def mutated(sums, root):
        terms, rounds = read(sums, root)
        mutation(rounds)
        return terms, rounds

    monkeypatch.setattr(replay._Sums, "rounds", mutated)
    with pytest.raises(ptx.PtxError, match="not give the kernel's bits"):
        case.read(compiled)


def test_an_interpreter_without_shuffles_is_noticed(monkeypatch):
    (_, case), compiled = next(iter(GOLDEN.items()))

    def stays(threads, instruction, mask):
        target, source, *_ = instruction.operands
        threads.write(target, threads.read(source, "u32"), mask)

    monkeypatch.setattr(ptx._Threads, "_shuffle", stays)
    with pytest.raises(ptx.PtxError, match="lacks some of its terms"):
        case.read(compiled)


def test_what_is_no_sum_is_refused():
    """The kernel's additions are products: no order is read."""
    (_, case), compiled = next(iter(GOLDEN.items()))
    texts = {k: t.replace("add.rn.f32", "mul.rn.f32") for k, t in compiled.ptx.items()}
    with pytest.raises(ptx.PtxError, match=r"mul\.rn\.f32"):
        case.read(compiled._replace(ptx=texts))


@pytest.mark.parametrize(
    "gpu", ["h100", *(pytest.param(g, marks=pytest.mark.slow) for g in OLDER)]
)
def test_kernels_compiled_now_are_replayed(compiler, gpu):
    """As `python tests/noise/gpu/reductions.py all`, for one in eight."""
    for case, compiled in reductions.compile_all(reductions.CASES[::8], gpu).items():
        x = case.drawn(0)
        result = case.read(compiled).sum(case.columns(x))
        assert result.tobytes() == reductions.interpreted(compiled, x).tobytes()


def test_trees_inside_of_other_kernels():
    """Terms need not be known: the tree is that of the sum alone."""
    for (_, case), compiled in GOLDEN.items():
        if case.arguments == 1 and len(compiled.launches) == 1:
            program = replay.assemble(compiled)
            kinds = ["bf16" if case.dtype == "bfloat16" else "f32", "f32"]
            variables = list(zip(kinds, program.sizes, strict=True))
            found = replay.trees(program.launches[0], variables)
            schedule = case.read(compiled)
            terms = math.prod(case.shape[d] for d in case.axes)
            assert str(found[terms]) == str(schedule)
