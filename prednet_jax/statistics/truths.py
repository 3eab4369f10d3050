"""What can be true in a simulated study, and how its differences are drawn."""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Truth:
    """What is true in a simulated study. Effects and spreads are in margins.

    Attributes:
        name: description.
        answer: the right verdict. Another one is an error, except "inconclusive".
        effect: by how much a random order raises the loss; negative: it helps.
        spread: standard deviation of the difference between a random order and no
            noise, over the seeds whose trajectories separate.
        shape: distribution of the losses of a seed's runs (see `draw`). A skewed one is
            that of the noisy runs; the run without noise does not scatter then, so that
            the differences are skewed.
        quiet_share: share of the seeds whose trajectories do not separate.
        affected_share: share of the seeds that have an additional effect.
        affected_by: the additional effect.
        fixed_effect: by how much the arm with a fixed order raises the loss.
        null_effect: true mean of the A/A null, which is another fixed order.
        one_draw_only: whether only the first draw of the random order has an effect,
            twice `effect`.
        stale_effect: true mean of stale targets.
        distance: distance over distance travelled, median over the seeds.
        noise_can_help: outcome of the control in which noise can help.
    """

    name: str
    answer: str
    effect: float = 0.0
    spread: float = 0.25
    shape: str = "normal"
    quiet_share: float = 0.0
    affected_share: float = 0.0
    affected_by: float = 0.0
    fixed_effect: float = 0.0
    null_effect: float = 0.0
    one_draw_only: bool = False
    stale_effect: float = 5.0
    distance: float = 0.5
    noise_can_help: bool = True


_HEAVY = ("lognormal 1", "lognormal 2", "skewed 1", "skewed 2")
_OPEN = "inconclusive"
TRUTHS = (
    *(
        Truth(name="no effect", answer="refuted", shape=shape)
        for shape in ("normal", *_HEAVY)
    ),
    *(
        Truth(name="helps by two margins", answer="supported", effect=-2, shape=shape)
        for shape in ("normal", *_HEAVY)
    ),
    *(
        Truth(name="helps by exactly the margin", answer=_OPEN, effect=-1, shape=shape)
        for shape in ("normal", "lognormal 2", "skewed 1")
    ),
    Truth(
        name="helps by two margins, spread 1", answer="supported", effect=-2, spread=1
    ),
    Truth(name="hurts by two margins", answer=_OPEN, effect=2),
    Truth(name="hurts by two margins", answer=_OPEN, effect=2, shape="lognormal 2"),
    Truth(
        name="one seed in ten gains 5 %",
        answer=_OPEN,
        spread=0.05,
        affected_share=0.1,
        affected_by=-2.5,
    ),
    Truth(
        name="one seed in three gains 10 %",
        answer=_OPEN,
        spread=0.05,
        affected_share=1 / 3,
        affected_by=-5,
    ),
    Truth(
        name="one seed in fifty gains 100 %",
        answer=_OPEN,
        spread=0.05,
        affected_share=0.02,
        affected_by=-50,
    ),
    Truth(name="no bit changed", answer=_OPEN, spread=0.0, distance=0.0),
    Truth(name="stops before separation", answer=_OPEN, spread=1e-3, distance=1e-3),
    Truth(
        name="no effect, half the seeds apart, spread 0.5",
        answer="refuted",
        spread=0.5,
        quiet_share=0.5,
    ),
    Truth(
        name="no effect, half the seeds apart, spread 1",
        answer="refuted",
        spread=1.0,
        quiet_share=0.5,
    ),
    Truth(name="no effect, all seeds apart, spread 0.5", answer="refuted", spread=0.5),
    Truth(name="no effect, all seeds apart, spread 1", answer="refuted", spread=1.0),
    Truth(
        name="any fixed order helps as much",
        answer=_OPEN,
        effect=-2,
        fixed_effect=-2,
        null_effect=-2,
    ),
    Truth(
        name="one fixed order alone helps by two margins",
        answer="supported",
        fixed_effect=-2,
    ),
    Truth(
        name="one fixed order alone hurts by two margins", answer=_OPEN, fixed_effect=2
    ),
    Truth(name="one draw of two helps", answer=_OPEN, effect=-2, one_draw_only=True),
    Truth(
        name="no effect, stale targets lower the loss", answer=_OPEN, stale_effect=-5
    ),
    Truth(name="no effect, noise helps nowhere", answer=_OPEN, noise_can_help=False),
)


def draw(
    rng: np.random.Generator, shape: str, size: tuple[int, ...]
) -> NDArray[np.float64]:
    """Draws deviations with mean 0 and standard deviation 1.

    Args:
        rng: the generator.
        shape: "normal"; "lognormal s", the difference of two lognormal variables of
            log-sd s, which is symmetric with heavy tails; or "skewed s", minus one such
            variable, so that most values are a little high and a few are very low.
        size: shape of the result.
    """
    if shape == "normal":
        return rng.normal(size=size)
    kind, sigma = shape.split()
    s = float(sigma)
    mean, sd = math.exp(s * s / 2), math.sqrt(math.expm1(s * s) * math.exp(s * s))
    first = rng.lognormal(0, s, size)
    if kind == "skewed":
        return (mean - first) / sd
    return (first - rng.lognormal(0, s, size)) / (sd * math.sqrt(2))
