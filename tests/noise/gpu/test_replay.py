"""Orders read from kernels: the replay has the bits of the kernel, interpreted."""

import functools
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


def drawn(case, seed):
    """An array other than the one that the order was read with."""
    x = np.random.default_rng(seed).normal(size=case.shape)
    return x.astype(np.float32)


def interpreted(compiled, x):
    program = replay.assemble(compiled)
    return program.run(program.memory([x]))


@golden
def test_the_order_is_read(gpu, case):
    """`read` raises where the schedule has other bits than the interpreted kernel."""
    schedule = order(gpu, case)
    x = np.random.default_rng(3).integers(-9, 9, case.shape)
    terms = np.moveaxis(x, case.axes, range(len(case.axes)))
    terms = terms.reshape(schedule.rounds[0].max() + 1, -1).astype(np.float32)
    # Of integers below 2^24 every order gives the exact sum.
    np.testing.assert_array_equal(schedule.sum(terms), x.sum(case.axes).ravel())


@pytest.mark.parametrize("case", reductions.CHOSEN, ids=lambda case: case.name)
def test_the_sum_in_jax_has_the_kernels_bits(case):
    x = drawn(case, 0)
    wanted = interpreted(GOLDEN["h100", case], x)
    add = jax.jit(lambda x: orders.in_order(order("h100", case), case.axes, x))
    assert np.asarray(add(x)).tobytes() == wanted.tobytes()


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
    key = next(k for k in GOLDEN if k[1].name == "1x24x32x12_over_1x2")
    _, case = key
    schedule, x = order(*key), drawn(case, 0)
    wanted = schedule.sum(x.reshape(-1, 12)).tobytes()
    assert interpreted(GOLDEN[key], x).tobytes() == wanted
    for number in range(5):
        mutant = without_a_shuffle(GOLDEN[key], number)
        assert interpreted(mutant, x).tobytes() != wanted
        with pytest.raises(ptx.PtxError, match="lacks some of its terms"):
            case.read(mutant)


def test_a_schedule_with_two_terms_exchanged_is_noticed(monkeypatch):
    (_, case), compiled = next(iter(GOLDEN.items()))
    read = replay._rounds

    def exchanged(*args):
        first, *rest = read(*args)
        first = first.copy()
        first[0, 0], first[1, 1] = first[1, 1], first[0, 0]
        return first, *rest

    monkeypatch.setattr(replay, "_rounds", exchanged)
    with pytest.raises(ptx.PtxError, match="not give the kernel's bits"):
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
    """As `python tests/noise/gpu/reductions.py all`, for one in eight.

    `read` raises where the schedule has other bits than the interpreted kernel.
    """
    for case, compiled in reductions.compile_all(reductions.CASES[::8], gpu).items():
        assert case.read(compiled).rounds, case.name
