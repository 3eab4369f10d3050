"""Every algorithm against sums written out in float64 NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax import noise
from prednet_jax.config import CONVOLUTIONS, Convolution
from prednet_jax.models import convolution

# Of the largest entry. Float32 has 1.2e-7; sums of some hundred terms reach 5e-7.
# F(4, 3) has coefficients up to 8 that cancel: 5e-6.
BOUNDS = {"strip4": 1e-5}
BOUND = 2e-6
GENERAL = [n for n, a in convolution.ALGORITHMS.items() if not a.only_3x3]


def shape(height, width, inputs, outputs, filter_size, **options):
    channels = {"in_channels": inputs, "out_channels": outputs}
    sizes = {"height": height, "width": width, "filter_size": filter_size}
    return Convolution(**channels, **sizes, **options)


def find(x, kernel, algorithm):
    size, _, *channels = kernel.shape
    return convolution.find(shape(*x.shape[1:3], *channels, size, algorithm=algorithm))


def reference(x, kernel, dz, upsampled):
    """Output and both gradients, tap by tap in float64."""
    x, kernel, dz = (np.asarray(a, np.float64) for a in (x, kernel, dz))
    if upsampled:
        x = x.repeat(2, 1).repeat(2, 2)
    _, height, width, _ = x.shape
    size = kernel.shape[0]
    reach = size // 2
    pads = ((0, 0), (reach, reach), (reach, reach), (0, 0))
    padded = np.pad(x, pads)
    y, d_padded, d_kernel = 0.0, np.zeros_like(padded), np.zeros_like(kernel)
    for i in range(size):
        for j in range(size):
            place = np.s_[:, i : i + height, j : j + width]
            y = y + padded[place] @ kernel[i, j]
            d_padded[place] += dz @ kernel[i, j].T
            d_kernel[i, j] = np.einsum("bhwi,bhwo->io", padded[place], dz)
    dx = d_padded[:, reach : reach + height, reach : reach + width]
    if upsampled:
        b, h, w, c = dx.shape
        dx = dx.reshape(b, h // 2, 2, w // 2, 2, c).sum((2, 4))
    return y, dx, d_kernel


def draw(seed, *, size=3, upsampled=False, height=5, width=7, dtype=np.float32):
    rng = np.random.default_rng(seed)
    scale = 2 if upsampled else 1
    out = (2, height * scale, width * scale, 5)
    shapes = ((2, height, width, 6), (size, size, 6, 5), out)
    return tuple(rng.normal(size=shape).astype(dtype) for shape in shapes)


def pull(algorithm, upsampled):
    @jax.jit
    def run(x, kernel, dz):
        y, back = jax.vjp(
            lambda x, k: convolution.conv2d(x, k, algorithm, upsampled), x, kernel
        )
        return y, *back(dz)

    return run


def assert_near(actual, expected, bound):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=bound * np.abs(e).max())


CASES = [
    *((name, False) for name in convolution.ALGORITHMS if name != "folded"),
    ("direct", True),
    ("folded", True),
]


@pytest.mark.parametrize(("algorithm", "upsampled"), CASES)
def test_output_and_gradients_at_an_odd_size(algorithm, upsampled):
    case = draw(0, upsampled=upsampled)
    expected = reference(*case, upsampled)
    actual = pull(algorithm, upsampled)(*case)
    assert_near(actual, expected, BOUNDS.get(algorithm, BOUND))


@pytest.mark.parametrize("algorithm", ["direct", "wide4"])
@pytest.mark.parametrize(("width", "size"), [(1, 7), (2, 3), (5, 7), (6, 3), (8, 3)])
def test_filter_gradients_at_the_end_of_a_row(algorithm, width, size):
    x, kernel, dz = draw(7, width=width, size=size)
    actual = convolution.filter_gradient(x, dz, size, find(x, kernel, algorithm))
    expected = reference(x, kernel, dz, False)[2]
    assert_near([actual], [expected], BOUND)


@pytest.mark.parametrize("algorithm", GENERAL)
def test_other_filter_sizes(algorithm):
    for size in (1, 5) if algorithm == "direct" else (5,):
        case = draw(1, size=size, height=6)
        assert_near(pull(algorithm, False)(*case), reference(*case, False), BOUND)


def test_float64():
    with jax.enable_x64(True):
        case = draw(2, dtype=np.float64)
        actual = pull("strip4", False)(*case)
        # 2.2e-16 times the same growth.
        assert_near(actual, reference(*case, False), 1e-14)


def test_long_filter_gradients_come_in_chunks(monkeypatch):
    x, kernel, dz = draw(6)
    x, dz = np.concatenate([x] * 3), np.concatenate([dz] * 3)
    monkeypatch.setattr(convolution, "CHUNK_PIXELS", 2 * 5 * 7)
    found = convolution.filter_gradient(x, dz, 3, find(x, kernel, "shifted"))
    assert_near([found], [reference(x, kernel, dz, False)[2]], BOUND)


def test_config_offers_every_algorithm_but_the_special_one():
    assert set(CONVOLUTIONS) == {"auto", *convolution.ALGORITHMS} - {"folded"}


@pytest.mark.parametrize("algorithm", ["xla", "im2col", "strip2"])
def test_chainer_profile_finds_both_gradients_and_not_the_output(algorithm):
    """Gradients vary in cuDNN, the forward convolution does not, however written."""
    x, kernel, dz = draw(8)

    def gradients(x, kernel, dz):
        run = jax.vjp(lambda x, k: convolution.conv2d(x, k, algorithm), x, kernel)
        return run[0], *run[1](dz)

    spec = noise.ReductionOrder(profile="chainer_cudnn")
    report = noise.coverage(gradients, spec)(x, kernel, dz)
    products = ("dot_general", "conv_general_dilated")
    left = [e.reason for e in report.untouched if e.primitive in products]
    perturbed = [e for e in report.perturbed if e.primitive in products]
    # Winograd's filter gradient ends in a product of constants with the sums.
    assert len(perturbed) >= 2
    assert left
    assert all("forward convolution" in reason for reason in left)


def test_auto_is_never_an_algorithm_that_cannot_do_the_shape():
    chosen = set()
    sizes = (2, 8, 32, 160), (1, 48, 192), (1, 3, 5), (False, True)
    for width, channels, size, upsampled in itertools.product(*sizes):
        one = shape(width, width, channels, channels, size, upsampled=upsampled)
        name = convolution.fastest(one, "cpu")
        algorithm = convolution.ALGORITHMS[name]
        assert one.filter_size == 3 or not algorithm.only_3x3
        assert one.upsampled or not algorithm.enlarges
        chosen.add(name)
        # XLA's own convolution is a plain loop there, and takes twice as long.
        assert convolution.fastest(one, "cpu", jnp.float64) == "im2col"
    # Each threshold parts the shapes above.
    assert chosen == {"direct", "folded", "wide4", "strip2", "strip4"}
    assert convolution.fastest(shape(32, 32, 48, 48, 3), "cpu", batch=2) == "mixed"
    # On a GPU large products are cuDNN's; a batch makes them large.
    middle = shape(48, 64, 57, 12, 3)
    assert convolution.fastest(middle, "gpu", batch=8) == "im2col"
    assert convolution.fastest(middle, "gpu", batch=32) == "xla"
    # Winograd's is the smaller one on small maps.
    assert convolution.fastest(shape(24, 24, 96, 96, 3), "cpu") == "strip2"
    assert convolution.fastest(shape(25, 25, 96, 96, 3), "cpu") == "strip4"


@pytest.mark.parametrize("algorithm", convolution.ALGORITHMS)
def test_every_place_of_a_convolution_has_noise(algorithm):
    """No algorithm hides outputs from noise, at borders or by zeros in its kernel."""
    rng = np.random.default_rng(0)
    upsampled = algorithm == "folded"
    x = rng.standard_normal((1, 6, 8, 8)).astype(np.float32)
    kernel = rng.standard_normal((3, 3, 8, 8)).astype(np.float32)

    def run(x, kernel):
        return convolution.conv2d(x, kernel, algorithm, upsampled)

    noisy = jax.jit(noise.inject(run, noise.ReductionOrder(granularity="element")))
    runs = np.stack([noisy(jax.random.key(i), x, kernel) for i in range(32)])
    # Over 8 features and 32 keys no place stays silent by chance.
    assert ((runs != runs[0]).any(axis=(0, 1, 4))).all()
