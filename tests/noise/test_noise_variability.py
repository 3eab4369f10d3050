import jax.numpy as jnp
import numpy as np
import pytest

from prednet_jax.noise import variability

A = {"x": jnp.array([1.0, -2.0, 0.0, 4.0]), "y": (jnp.array([[10.0]]),)}
B = {"x": jnp.array([1.0, -3.0, 0.0, 3.0]), "y": (jnp.array([[10.0]]),)}


def test_by_hand():
    assert variability.v_ermv(A, B) == pytest.approx((0.5 + 0.25) / 5)
    assert variability.v_ermv(B, A) == pytest.approx((1 / 3 + 1 / 3) / 5)
    assert variability.v_c(A, B) == 2 / 5
    assert variability.l2_distance(A, B) == pytest.approx(np.sqrt(2))


@pytest.mark.parametrize("other", [{"x": A["x"]}, {**A, "x": jnp.ones(3)}, {}])
def test_what_cannot_be_compared_is_refused(other):
    with pytest.raises(ValueError, match="expected the same structure and shapes"):
        variability.v_c(A, other)
