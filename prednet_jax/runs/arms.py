"""The arms of a comparison: how each process is started, and what it is for.

Threads and XLA's flags are read once, when a backend starts, so two arms never share a
process. Only this module parses an arm's name; others ask it for role and scale.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from prednet_jax import noise
from prednet_jax.config import CONVOLUTIONS
from prednet_jax.errors import UserError


class Role(StrEnum):
    """What an arm is for in the verdict.

    docs/arms.md has the arms of each. GPU is compared with GPU_DETERMINISTIC, the same
    GPU without its noise. NULL, another fixed order of the same sums, should differ by
    chance only. DESCRIPTIVE: shown, not judged.
    """

    CONTROL = "control"
    TREATMENT = "treatment"
    GPU = "gpu"
    GPU_DETERMINISTIC = "gpu_deterministic"
    NULL = "null"
    GAUSSIAN = "gaussian"
    STALE = "stale"
    DESCRIPTIVE = "descriptive"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm: one way to train, in processes of its own.

    Attributes:
        name: name in tables and directories.
        meaning: one phrase for the report.
        role: its part in the verdict.
        scale: size of its Gaussian noise, relative to the gradient's norm; None: none.
        flags: flags of `experiments/train.py` beyond those that all arms share.
        environment: environment variables set for the process.
        threads: number of processors that it may use; None: all.
        draws: number of independent draws of its noise, in a process each; the metric
            of a seed is their mean.
        examples: whether its predictions are kept, to be shown and compared; each
            process then has one more program to compile.
    """

    name: str
    meaning: str
    role: Role = Role.DESCRIPTIVE
    scale: float | None = None
    flags: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = (("JAX_PLATFORMS", "cpu"),)
    threads: int | None = None
    draws: int = 1
    examples: bool = False

    @property
    def gpu(self) -> bool:
        """Whether it needs a GPU."""
        return self.role in (Role.GPU, Role.GPU_DETERMINISTIC)

    def as_dict(self) -> dict[str, object]:
        """Role and scale, as in verdict.json."""
        scale = {} if self.scale is None else {"scale": self.scale}
        return {"role": self.role.value, **scale}


# The CPU too: initial weights are drawn there.
_GPU = (("JAX_PLATFORMS", "cuda,cpu"), ("JAX_DEFAULT_MATMUL_PRECISION", "highest"))
_FIXED = (
    Arm(
        name="float32",
        meaning="float32, deterministic order (the control)",
        role=Role.CONTROL,
        examples=True,
    ),
    Arm(
        name="reduction_order",
        meaning="fresh random order of every reduction",
        role=Role.TREATMENT,
        flags=("--noise=reduction_order",),
        draws=2,
        examples=True,
    ),
    Arm(
        name="stale_targets",
        meaning="every frame of a window is pulled towards the last",
        role=Role.STALE,
        flags=("--targets=stale",),
        examples=True,
    ),
    Arm(
        name="float64",
        meaning="float64, deterministic order",
        flags=("--precision=float64",),
    ),
    Arm(
        name="reduction_order_run",
        meaning="random order of every reduction, the same for the whole run",
        role=Role.NULL,
        flags=("--noise=reduction_order:schedule=run",),
    ),
    Arm(
        name="gpu_order",
        meaning="the fixed order of sums of a GTX 1080, products by a model",
        role=Role.NULL,
        flags=("--noise=gpu_order:gpu=gtx1080",),
    ),
    Arm(
        name="ulp",
        meaning="up to one ulp on every result",
        flags=("--noise=ulp",),
        examples=True,
    ),
    Arm(
        name="gpu",
        meaning="GPU, default algorithms",
        role=Role.GPU,
        draws=2,
        environment=_GPU,
    ),
    Arm(
        name="gpu_deterministic",
        meaning="GPU, deterministic algorithms",
        role=Role.GPU_DETERMINISTIC,
        environment=(*_GPU, ("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")),
    ),
)
CONTROL, TREATMENT, STALE = _FIXED[:3]
_BY_NAME = {arm.name: arm for arm in _FIXED}


# Families of arms, by the pattern of their names; {} is what its group matches.
_FAMILIES = {
    r"threads_([1-9]\d*)": Arm(
        name="threads_<n>",
        meaning="float32, {} thread(s)",
        role=Role.NULL,
        flags=("--threads={}",),
    ),
    r"gaussian_(\d+(?:\.\d+)?(?:e-?\d+)?)": Arm(
        name="gaussian_<scale>",
        meaning="Gaussian noise of {} times the gradient's norm",
        role=Role.GAUSSIAN,
        flags=("--noise=gradient_gaussian:scale={}",),
    ),
    "noise:(.*)": Arm(name="noise:<spec>", meaning="{}", flags=("--noise={}",)),
    f"convolution_({'|'.join(CONVOLUTIONS[1:])})": Arm(  # `auto` is the control's.
        name=f"convolution_<{'|'.join(CONVOLUTIONS[1:])}>",
        meaning="{} convolutions, another fixed order",
        role=Role.NULL,
        flags=("--convolution={}",),
    ),
}
#: Every name, as in help texts.
NAMES = (*_BY_NAME, *(family.name for family in _FAMILIES.values()))


def arm(name: str) -> Arm:
    """The arm of a name."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    for pattern, family in _FAMILIES.items():
        if match := re.fullmatch(pattern, name):
            (flag,) = family.flags
            if flag.startswith("--noise="):
                _check_noise(name, flag.removeprefix("--noise=").format(match[1]))
            return replace(
                family,
                name=name,
                meaning=family.meaning.format(match[1]),
                flags=(flag.format(match[1]),),
                threads=int(match[1]) if flag.startswith("--threads") else None,
                scale=float(match[1]) if family.role is Role.GAUSSIAN else None,
            )
    raise UserError(f"arm={name!r}: expected one of {', '.join(NAMES)}")


def _check_noise(name: str, text: str) -> None:
    try:
        spec = noise.parse(text)
    except ValueError as error:
        raise UserError(f"arm={name!r}: {error}") from None
    if spec == noise.Identity():
        raise UserError(f"arm={name!r}: expected a noise, such as noise:ulp:max_ulps=2")


def names(words: Sequence[str]) -> tuple[str, ...]:
    """Names of arms from a text that was cut at its commas.

    A spec has commas of its own: `noise:ulp:max_ulps=2,site=weights` is one name.
    """
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].startswith("noise:") and re.match(r"\w+=", word):
            joined[-1] += f",{word}"
        else:
            joined.append(word)
    return tuple(joined)
