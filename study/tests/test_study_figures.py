from prednet_jax.saddles.symmetric import SaddleRow
from study import figures


def test_effects_are_relative_to_float32_of_the_same_seed():
    rows = [
        SaddleRow(program, arm, delta, seed, 700 + seed, False, loss * (1 + seed), 3000)
        for program in ("ordinary", "symmetric")
        for delta in (0.0, 0.1)
        for arm, loss in (("float32", 3.0), ("tile", 1.5))
        for seed in (1, 0)
    ]
    found = figures.effects(rows)
    names = [(e["program"], e["delta"], e["arm"]) for e in found]
    assert names[:3] == [
        ("symmetric", 0.0, "float32"),
        ("symmetric", 0.0, "tile"),
        ("symmetric", 0.1, "float32"),
    ]
    assert found[1]["separated_at"] == [700, 701]
    assert found[1]["over_control"] == [0.5, 0.5]
