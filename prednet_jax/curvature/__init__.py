"""Curvature of a loss at given weights, which shows saddles and the reach of noise.

Everything here takes a loss and a pytree of weights and knows no model.
`extreme_eigenpairs` finds the lowest and highest curvature, raw or in the coordinates
of Adam (`adam_scale`); `certify` tries several starts and reports which bounds are
proved.
"""

from prednet_jax.curvature.certify import Certificate as Certificate
from prednet_jax.curvature.certify import certify as certify
from prednet_jax.curvature.hessian import Eigenpairs as Eigenpairs
from prednet_jax.curvature.hessian import adam_scale as adam_scale
from prednet_jax.curvature.hessian import extreme_eigenpairs as extreme_eigenpairs
