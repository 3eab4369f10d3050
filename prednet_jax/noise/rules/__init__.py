"""What noise does at each primitive: one table, `registry`, filled here.

A new primitive's rule: a sum in `reductions`, a primitive that rounds in `elementwise`,
one that runs other programs in `control_flow`.
"""

from prednet_jax.noise import compat
from prednet_jax.noise.rules import control_flow, elementwise, reductions, registry

for _name in sorted(
    elementwise.ROUNDING
    | reductions.CUTS.keys()
    | reductions.LEFT_ALONE.keys()
    | reductions.COMBINERS
):
    registry.add(
        _name,
        registry.FirstOrder(
            rounds=_name in elementwise.ROUNDING,
            cut=reductions.CUTS.get(_name),
            left_alone=reductions.LEFT_ALONE.get(_name, ""),
        ),
    )
for _name, _rule in control_flow.HIGHER_ORDER.items():
    registry.add(_name, _rule)


def known() -> frozenset[str]:
    """Names of all primitives that JAX has or that have a rule."""
    return frozenset(registry.registered()) | compat.primitive_names()
