"""Orders read from kernels: the replay has the bits of the kernel, interpreted."""

import functools
import re

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from prednet_jax import noise
from prednet_jax.noise.gpu import orders, ptx, replay
from tests.accuracy.noise_programs import normal
from tests.noise.gpu import reductions

# Products are compared to the bit; a user's compiler fuses multiply and add.
pytestmark = pytest.mark.optimized

GOLDEN = reductions.golden()
OLDER = ("gtx1080", "rtx2080ti")
IDS = [f"{gpu}-{case.name}" for gpu, case in GOLDEN]


@functools.cache
def order(gpu, case):
    return case.read(GOLDEN[gpu, case])


@pytest.mark.parametrize(("gpu", "case"), list(GOLDEN), ids=IDS)
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


def test_the_order_is_that_of_a_real_gpu():
    """An H200 computed these bits, but where it took a kernel of Triton."""
    kernels = {case: made for (gpu, case), made in GOLDEN.items() if gpu == "h100"}
    same = reductions.as_on_h200(kernels)
    own = set(same) - reductions.of_triton()
    assert len(own) == 4
    assert {name for name, equal in same.items() if equal} == own


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


GTX = noise.GpuOrder(gpu="gtx1080")
# One of the sums that are committed: a bias gradient of PredNet at 24x32.
BIAS = (1, 24, 32, 12)


def bias_gradient(x):
    return lax.reduce_sum(x, (1, 2))


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No compiler, and nothing read before."""
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setattr("importlib.metadata.distributions", lambda **where: ())
    monkeypatch.setattr(orders, "_SCHEDULES", {})


def test_text():
    for text, message in (
        ("gpu_order", "gpu_order needs gpu"),
        ("gpu_order:gpu=gtx1", "gpu='gtx1': expected one of gtx750ti, "),
        ("gpu_order:gpu=h100,products=fast", "products='fast': expected one of fused"),
        ("gpu_order:gpu=h100+reduction_order", "expected one order for a sum"),
    ):
        assert noise.parse("gpu_order:gpu=gtx1080") == GTX
        with pytest.raises(noise.NoiseError, match=message):
            noise.parse(text)


def test_a_committed_order_needs_no_compiler(alone):
    x = normal(0, *BIAS)
    noisy = noise.inject(bias_gradient, GTX)(jax.random.key(0), x)
    schedule = orders.committed()["gtx1080:float32[1,24,32,12]:1,2"]
    wanted = schedule.sum(x.reshape(-1, 12))
    assert np.asarray(noisy[0]).tobytes() == wanted.tobytes()
    assert np.any(noisy != bias_gradient(x))


def test_without_the_compiler_one_line_has_the_command(alone):
    with pytest.raises(noise.NoiseError, match="pip install") as caught:
        noise.inject(bias_gradient, GTX)(jax.random.key(0), normal(0, 1, 24, 32, 13))
    assert "\n" not in str(caught.value)


def test_an_order_is_read_while_a_function_is_traced(compiler):
    """No committed order; the check of what was read became a part of the trace."""
    total = functools.partial(lax.reduce_sum, axes=(1,))
    x = normal(0, 5, 71)
    found = jax.jit(noise.inject(total, GTX))(jax.random.key(0), x)
    np.testing.assert_allclose(found, total(x), rtol=1e-5, atol=1e-5)


def test_an_order_is_read_once(compiler, monkeypatch):
    key = orders.SumSignature("gtx1080", "float32", (5, 70), (1,))
    schedule = orders.schedule_for(key)
    monkeypatch.setattr(orders.compilation, "compiled_for", None)
    assert orders.schedule_for(key) is schedule


def test_nothing_is_random_and_the_derivative_is_that_of_the_sum():
    noisy, x = noise.inject(bias_gradient, GTX), normal(0, *BIAS)
    first = noisy(jax.random.key(0), x)
    np.testing.assert_array_equal(first, jax.jit(noisy)(jax.random.key(1), x))

    def loss(total, *args):
        return jnp.vdot(total(*args), jnp.arange(12.0))

    found = jax.grad(lambda x: loss(noisy, jax.random.key(0), x))(x)
    np.testing.assert_array_equal(found, jax.grad(lambda x: loss(bias_gradient, x))(x))


def test_coverage_says_what_is_replayed_and_what_not():
    def fn(x, w):
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)
        return bias_gradient(y) + bias_gradient(jnp.cumsum(x, 1)) + x[0, :2].sum(0)[:1]

    arrays = normal(0, *BIAS), normal(0, 3, 3, 12, 12)
    report = noise.coverage(fn, GTX)(*arrays)
    reasons = {e.primitive: e.reason for e in report.perturbed}
    assert reasons["reduce_sum"] == "in the order of gtx1080's kernel for this sum"
    products = reasons["conv_general_dilated"]
    assert products == "by the model 'fused' (rising k, multiply-add)"
    plain = noise.coverage(fn, noise.parse("gpu_order:gpu=gtx1080,products=plain"))
    reasons = {e.primitive: e.reason for e in plain(*arrays).untouched}
    assert "products=plain" in reasons["conv_general_dilated"]
    left = {e.primitive: e for e in report.untouched}
    assert [left[n].has_order for n in ("cumsum", "reduce_sum")] == [True, False]
    assert left["cumsum"].reason.startswith("not replayed")


NHWC = ("NHWC", "HWIO", "NHWC")


def rising_k(a, b):
    """The model: [m, k], [k, n]. With 64 bits a multiply-add is rounded once."""
    a, b = np.longdouble(a), np.longdouble(b)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = (a[:, k, None] * b[None, k] + total).astype(np.float32)
    return total


def tf32(x):
    """Rounded to 11 significant bits, ties away from zero."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    whole = np.floor(np.abs(mantissa) * 2**11 + 0.5) * np.sign(mantissa)
    return np.ldexp(whole, exponent - 11).astype(np.float32)


@pytest.mark.parametrize(
    ("gpu", "precision"), [("gtx1080", None), ("h100", None), ("h100", "highest")]
)
def test_products_follow_the_stated_model(gpu, precision):
    """Operands are rounded to TF32 where the GPU has it and the program allows it."""
    a, b = normal(0, 24, 108), normal(1, 108, 36)

    def product(a, b):
        return jnp.matmul(a, b, precision=precision)

    result = noise.inject(product, noise.GpuOrder(gpu=gpu))(jax.random.key(0), a, b)
    left, right = (np.asarray(x) for x in (a, b))
    if gpu == "h100" and precision is None:
        left, right = tf32(left), tf32(right)
    np.testing.assert_array_equal(result, rising_k(left, right))


def test_a_convolution_is_the_product_of_its_patches():
    x, w = normal(0, 2, 7, 6, 3), normal(1, 3, 2, 3, 4)

    def conv(x, w):
        padding = [(1, 1), (0, 0)]
        return lax.conv_general_dilated(x, w, (2, 1), padding, dimension_numbers=NHWC)

    result = noise.inject(conv, GTX)(jax.random.key(0), x, w)
    padded = np.pad(np.asarray(x), [(0, 0), (1, 1), (0, 0), (0, 0)])
    kernel = np.asarray(w).transpose(2, 0, 1, 3).reshape(-1, 4)
    for i in range(result.shape[1]):
        for j in range(result.shape[2]):
            window = padded[:, 2 * i : 2 * i + 3, j : j + 2]
            rows = window.transpose(0, 3, 1, 2).reshape(2, -1)
            np.testing.assert_array_equal(result[:, i, j], rising_k(rows, kernel))
