"""The parts of the study: networks, treatments, seeds and lengths of the trainings.

study/pages/plan.md gives the reasons. All arms of a seed start from the same weights
and see the same frames in the same order.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from prednet_jax import errors
from prednet_jax.config import ARTICLE, MIDDLE, SMALL, PredNetConfig
from prednet_jax.runs.arms import Arm
from prednet_jax.statistics.redraws import RAISES, Group

CONTROL = "float32"
#: Processors of a training; the bits depend on it.
THREADS = 1
GREY = PredNetConfig(channels=(1, 6, 12), height=40, width=40)


#: The fields of a `StudyArm` in a record, which has its name as `arm`.
RECORDED = (
    *("draw", "noise", "dose", "targets", "precision", "optimizer", "convolution"),
    *("rate", "rate_change_update", "weights_seed_offset", "seeds"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyArm(Arm):
    """One way to train the network of a part, with changes that `train.py` lacks.

    Attributes:
        draw: number of the draw; the draws of an arm differ only in the keys of their
            noise.
        dose: (factor, kind) of `dose.amplified`, or None.
        optimizer: `adam` or `momentum`.
        rate: factor of the learning rate; other than 1 it plants a known effect.
        rate_change_update: number of updates before the factor applies.
        weights_seed_offset: number of the other seed, beyond the seeds of the study,
            from which initial weights are drawn. Defaults to 0, the seed's own.
        seeds: number of the part's first seeds that get this treatment. Defaults to
            all.
        mode: execution of several seeds on a GPU: `vmap`, all at once, or `map`, one
            after another as a single run.
        deterministic: whether it is compiled under `--xla_gpu_deterministic_ops=true`.
        products: precision of products of matrices; `default` may round to TF32.
    """

    draw: int = 0
    dose: tuple[float, str] | None = None
    optimizer: str = "adam"
    rate: float = 1.0
    rate_change_update: int = 0
    weights_seed_offset: int = 0
    seeds: int | None = None
    mode: str = "vmap"
    deterministic: bool = False
    products: str = "highest"

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that records have."""
        return {"arm": self.name} | {name: getattr(self, name) for name in RECORDED}

    @property
    def only_noise(self) -> bool:
        """Whether it has noise of its natural size and no other change."""
        return self.noise != "none" and self.dose is None

    def weights_seed(self, seed: int) -> int:
        """Returns the seed from which the initial weights of a run are drawn."""
        if not self.weights_seed_offset:
            return seed
        return 1_000_000 + 100 * seed + self.weights_seed_offset


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomWindows:
    """Training on random windows of many sequences, each from the zero state.

    The objective is `mse`; Adam's rate falls along a cosine from `learning_rate` to
    `rate_floor` times it. The seed decides the initial weights and which windows an
    update gets; the sequences come from the split `train`, and the held-out loss from
    16 sequences of `test`.
    """

    batch: int = 8
    sequences: int = 256
    learning_rate: float = 2e-3
    rate_floor: float = 0.02
    clip_gradient: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the study; the defaults are part C's.

    Its seeds are run in their order. The control of each optimiser, or else the first
    treatment, precedes the treatments that are compared with it. Without
    `random_windows` a run is trained on one stream in order.

    Attributes:
        endpoint: the endpoint of `study.endpoints` that its answer is about.
        status: date of the plan of a part whose random orders have an answer.
        positive_controls: arms whose answer is known, and the answer. If one of them
            has another answer, the answer of the part is unconfirmed.
    """

    name: str
    network: PredNetConfig = SMALL
    data: str = "walk"
    window: int = 10
    updates: int = 3000
    truncation_leak: bool = False
    random_windows: RandomWindows | None = None
    endpoint: str = "last_frame_loss"
    seeds: Sequence[int]
    treatments: tuple[StudyArm, ...]
    status: str = ""
    positive_controls: Mapping[str, str] = dataclasses.field(
        default_factory=dict, hash=False
    )

    @property
    def snapshots(self) -> tuple[int, ...]:
        """Updates after which weights are compared with the control's."""
        marks = {m * 10**e for e in range(6) for m in (1, 2, 5)}
        marks |= {self.updates // 2, self.updates}
        return tuple(sorted(m for m in marks if m <= self.updates))

    def control(self, treatment: StudyArm) -> str:
        """Returns the arm that a treatment is compared with; by default the first."""
        adam = treatment.optimizer == "adam"
        name = CONTROL if adam else f"{CONTROL}_{treatment.optimizer}"
        arms = [t.name for t in self.treatments]
        return name if name in arms else arms[0]

    def of_seed(self, seed: int) -> tuple[StudyArm, ...]:
        """Returns the treatments that a seed of the part gets."""
        errors.one_of("seed", seed, tuple(self.seeds))
        before = self.seeds.index(seed)
        return tuple(t for t in self.treatments if t.seeds is None or before < t.seeds)


RANDOM, FIXED = "reduction_order", "reduction_order_run"
#: Another fixed order of the same sums, the A/A null; and the mistake of the script.
NULL, STALE = "convolution_im2col", "stale_targets"
#: Every arm with a fixed order of its sums, as one control.
FIXED_ORDERS = Group("fixed_orders", (CONTROL, NULL, FIXED))
#: Stale targets under an order that is drawn once for the run.
STALE_RUN = "stale_order_run"
#: What an interval that lies above 0 says of a small planted effect.
ABOVE_ZERO = "above 0"
_PLAIN = StudyArm(name=CONTROL)
_NULL = StudyArm(name=NULL, convolution="im2col")
_STALE = StudyArm(name=STALE, targets="stale")
# Orders that are drawn for each output: what part H asks about; and fixed for a run.
_ELEMENT = "reduction_order:granularity=element"
_FIXED_ELEMENT = f"{_ELEMENT},schedule=run"


def _draws(arm: str, noise: str, draws: Sequence[int], **more: Any) -> list[StudyArm]:
    """Returns runs of a seed that differ only in the order of their sums."""
    return [StudyArm(name=arm, noise=noise, draw=i, **more) for i in draws]


_ORDER = _draws(RANDOM, "reduction_order", range(2))
_RUN = _draws(FIXED, "reduction_order:schedule=run", range(2))
# Orders that differ between any two channels. Those of `_ORDER` differ between blocks
# of 32, more channels than most layers of the small network have.
_ORDER_PER_CHANNEL = _draws(
    "reduction_order_tile_1", "reduction_order:tile=1", range(2)
)
#: On how many seeds part I has twelve machines.
SEEDS_WITH_TWELVE_MACHINES = 6


def _machines(prefix: str) -> list[StudyArm]:
    """Returns part I's twelve machines: eight with true and four with stale targets.

    Each machine adds in another fixed order, on the first seeds only. With a prefix it
    also starts from other weights. Without one, float32 is the first of the eight.
    """
    machines = [
        _PLAIN,
        _NULL,
        *_draws(FIXED, _FIXED_ELEMENT, range(6)),
        *_draws(STALE_RUN, _FIXED_ELEMENT, range(6, 10), targets="stale"),
    ]
    return [
        dataclasses.replace(
            machine,
            name=prefix + machine.name,
            weights_seed_offset=number if prefix else 0,
            seeds=SEEDS_WITH_TWELVE_MACHINES,
        )
        for number, machine in enumerate(machines, start=1)
        if prefix or machine.name != CONTROL
    ]


def _doses(optimizer: str, factors: Sequence[float]) -> list[StudyArm]:
    """Returns amplified noise of three kinds, after its control."""
    suffix = "" if optimizer == "adam" else f"_{optimizer}"
    control = StudyArm(name=CONTROL + suffix, optimizer=optimizer)
    return [control] + [
        StudyArm(
            name=f"{kind}_{factor:g}{suffix}",
            noise="reduction_order",
            dose=(factor, kind),
            optimizer=optimizer,
        )
        for factor in factors
        for kind in ("order", "coordinates", "isotropic")
    ]


#: Three fixed orders and two random draws.
_THREE_FIXED_AND_TWO_RANDOM = (
    *(_PLAIN, _NULL),
    *_draws(FIXED, _FIXED_ELEMENT, [0]),
    *_draws(RANDOM, _ELEMENT, range(2)),
)


#: The article's network, window and length, with the leak of its script.
_ARTICLE_SIZE: dict[str, Any] = {
    "network": ARTICLE,
    "window": 20,
    "updates": 250,
    "truncation_leak": True,
}
_MIDDLE_SIZE: dict[str, Any] = {"network": MIDDLE, "window": 20}
#: A network that has learned: small enough for many runs, and noisy enough to part.
_WINDOWS: dict[str, Any] = {
    "network": PredNetConfig(channels=(3, 16, 32), height=16, width=16),
    "random_windows": RandomWindows(batch=1, learning_rate=5e-3, rate_floor=0.2),
    "updates": 3500,
    "seeds": range(8640, 8664),
}


_PARTS = (
    Part(
        name="B",
        updates=500,
        seeds=range(8200, 8210),
        treatments=(
            *_doses("adam", (1.0, 1e2, 1e4, 1e6, 1e7, 1e8)),
            *_doses("momentum", (1e4, 1e6, 1e8)),
        ),
    ),
    Part(
        name="B-null",
        updates=500,
        seeds=range(8200, 8210),
        treatments=(
            *(_PLAIN, _NULL, *_draws(FIXED, _FIXED_ELEMENT, [0])),
            StudyArm(name=f"{CONTROL}_momentum", optimizer="momentum"),
            dataclasses.replace(_NULL, name=f"{NULL}_momentum", optimizer="momentum"),
        ),
    ),
    Part(
        name="C",
        status="after looking: part C",
        seeds=range(8300, 8340),
        treatments=(
            _PLAIN,
            *_ORDER,
            *_RUN,
            _NULL,
            _STALE,
            StudyArm(name="float64", precision="float64", seeds=8),
        ),
    ),
    Part(
        name="C-digits",
        network=GREY,
        data="moving_digits",
        seeds=range(8340, 8348),
        treatments=(_PLAIN, *_ORDER, *_RUN, _STALE),
    ),
    Part(
        name="C-noise",
        seeds=range(8348, 8356),
        # The last is the largest Gaussian noise of part B, at the length of part C.
        treatments=(_PLAIN, *_ORDER_PER_CHANNEL, *_ORDER, _doses("adam", [1e8])[-1]),
    ),
    Part(
        name="D",
        **_MIDDLE_SIZE,
        seeds=range(8400, 8408),
        treatments=(_PLAIN, _ORDER[0], _STALE),
    ),
    Part(
        name="D-plateau",
        **_MIDDLE_SIZE,
        # The one seed of part D whose plateau lasts.
        seeds=(8401,),
        treatments=(
            *(_PLAIN, _NULL),
            *_draws(FIXED, "reduction_order:schedule=run", range(3)),
            *_draws(RANDOM, "reduction_order", range(4)),
        ),
    ),
    Part(
        name="D-null",
        **_MIDDLE_SIZE,
        # Those whose float32 in part D ran on an AMD EPYC.
        seeds=(8402, *range(8404, 8408)),
        treatments=(_NULL,),
    ),
    Part(
        name="E",
        **_ARTICLE_SIZE,
        seeds=range(8500, 8503),
        treatments=(_PLAIN, _RUN[0], _ORDER[0], _STALE),
    ),
    Part(
        name="E-null",
        # Part E's seeds on another processor, with whose orders it is compared.
        **_ARTICLE_SIZE,
        seeds=range(8500, 8503),
        treatments=(_PLAIN,),
    ),
    Part(
        name="E-stale",
        # More machines with stale targets, in addition to the machines of parts E and
        # G.
        **_ARTICLE_SIZE,
        seeds=(8501, 8502, 8500),
        treatments=(
            _STALE,
            dataclasses.replace(_RUN[0], name=STALE_RUN, targets="stale", seeds=2),
        ),
    ),
    Part(
        name="I",
        **_MIDDLE_SIZE,
        updates=250,
        truncation_leak=True,
        seeds=range(8700, 8740),
        treatments=(_PLAIN, _STALE, *_machines(""), *_machines("free_")),
    ),
    Part(
        name="H",
        status="planned before its first run: part H",
        positive_controls={
            STALE: RAISES,
            "order_1e+07": RAISES,
            "planted_rate_0.4": RAISES,
            "planted_rate_0.85": ABOVE_ZERO,
        },
        seeds=range(8600, 8640),
        treatments=(
            _PLAIN,
            _NULL,
            *_draws(FIXED, _FIXED_ELEMENT, range(2)),
            *_draws(RANDOM, _ELEMENT, range(4)),
            _STALE,
            # They learn more slowly in the last fifth. A rate that is lower from the
            # start is another trajectory before rounding is.
            *_draws(
                "planted_rate_0.4",
                _ELEMENT,
                range(2),
                rate=0.4,
                rate_change_update=2400,
            ),
            *_draws(
                "planted_rate_0.85",
                _ELEMENT,
                range(4),
                rate=0.85,
                rate_change_update=2400,
            ),
            StudyArm(name="order_1e+07", noise=_ELEMENT, dose=(1e7, "order"), seeds=8),
        ),
    ),
    Part(
        name="J",
        status="planned before its first run: part J",
        positive_controls={STALE: RAISES, "planted_rate_0": RAISES},
        seeds=range(8740, 8800),
        treatments=(
            *_THREE_FIXED_AND_TWO_RANDOM,
            # They stop learning for the last fifth.
            *_draws(
                "planted_rate_0", _ELEMENT, range(2), rate=0.0, rate_change_update=2400
            ),
            dataclasses.replace(_STALE, seeds=8),
        ),
    ),
    Part(
        name="H-windows",
        status="planned before its first run: part H-windows",
        endpoint="window_loss",
        positive_controls={STALE: RAISES, "planted_rate_0": RAISES},
        **_WINDOWS,
        treatments=(
            *_THREE_FIXED_AND_TWO_RANDOM,
            dataclasses.replace(_STALE, seeds=8),
            StudyArm(
                name="planted_rate_0",
                noise=_ELEMENT,
                rate=0.0,
                rate_change_update=2800,
                seeds=12,
            ),
        ),
    ),
    Part(
        name="H-digits",
        network=GREY,
        data="moving_digits",
        seeds=range(8664, 8680),
        treatments=(*_THREE_FIXED_AND_TWO_RANDOM, dataclasses.replace(_STALE, seeds=8)),
    ),
    Part(
        name="J-planted",
        # Part J's first seeds, whose fixed orders it is compared with.
        seeds=range(8740, 8772),
        treatments=(
            _PLAIN,
            *_draws(
                "planted_rate_0.2",
                _ELEMENT,
                range(2),
                rate=0.2,
                rate_change_update=2400,
            ),
        ),
    ),
    Part(
        name="H-windows-planted",
        # Part H-windows's seeds, whose fixed orders it is compared with.
        **_WINDOWS,
        treatments=(
            _PLAIN,
            StudyArm(name="planted_rate_2.3", rate=2.3, rate_change_update=2800),
            StudyArm(name="planted_rate_1.4", rate=1.4, rate_change_update=2800),
        ),
    ),
)
PARTS = {part.name: part for part in _PARTS}
#: The part that `make compare` repeats; its verdict is results/study/verdict.json.
ANSWER = PARTS["C"]
