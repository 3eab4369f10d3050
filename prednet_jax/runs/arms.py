"""The arms (treatments) of a comparison: how each process is started, and its role.

Threads and XLA's flags are read once, when a backend starts, so two arms never share a
process. Only this module parses an arm's name; other modules read its role and scale.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from prednet_jax import noise, statistics
from prednet_jax.config import CONVOLUTIONS
from prednet_jax.errors import UserError, named


class Role(StrEnum):
    """The role of an arm in the verdict.

    study/pages/arms.md lists the arms of each role. GPU is compared with
    GPU_DETERMINISTIC, the same GPU without its noise. NULL, another fixed order of the
    same sums, should differ by chance only. DESCRIPTIVE arms are shown but not judged.
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
    """One way to train, and its part in a comparison; each run is its own process.

    Attributes:
        name: name in tables and directories.
        meaning: one phrase for the report.
        role: its part in the verdict.
        scale: size of its Gaussian noise, relative to the gradient's norm. Defaults to
            no noise.
        noise, targets, precision, convolution: settings of `train.py` of these names.
        environment: environment variables set for the process.
        threads: number of processors that it may use. Defaults to all.
        draws: number of independent draws of its noise, in a process each; the metric
            of a seed is their mean.
        examples: whether its predictions are kept, to be shown and compared; each
            process then has one more program to compile.
    """

    name: str
    meaning: str = ""
    role: Role = Role.DESCRIPTIVE
    scale: float | None = None
    noise: str = "none"
    targets: str = "true"
    precision: str = "float32"
    convolution: str = "auto"
    environment: tuple[tuple[str, str], ...] = (("JAX_PLATFORMS", "cpu"),)
    threads: int | None = None
    draws: int = 1
    examples: bool = False

    @property
    def gpu(self) -> bool:
        """Returns whether it needs a GPU."""
        return self.role in (Role.GPU, Role.GPU_DETERMINISTIC)

    @property
    def changes(self) -> dict[str, str | int]:
        """Returns its settings of `train.py` that differ from the control's."""
        names = ("noise", "targets", "precision", "convolution", "threads")
        values = {name: getattr(self, name) for name in names}
        return {k: v for k, v in values.items() if v != getattr(Arm, k)}


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
        noise="reduction_order",
        draws=2,
        examples=True,
    ),
    Arm(
        name="stale_targets",
        meaning="every frame of a window is pulled towards the last",
        role=Role.STALE,
        targets="stale",
        examples=True,
    ),
    Arm(name="float64", meaning="float64, deterministic order", precision="float64"),
    Arm(
        name="reduction_order_run",
        meaning="random order of every reduction, the same for the whole run",
        role=Role.NULL,
        noise="reduction_order:schedule=run",
    ),
    Arm(
        name="gpu_order",
        meaning="the fixed order of sums of a GTX 1080, products by a model",
        role=Role.NULL,
        noise="gpu_order:gpu=gtx1080",
    ),
    Arm(
        name="ulp", meaning="up to one ulp on every result", noise="ulp", examples=True
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


def _threads(value: str) -> Arm | None:
    if not value.isdecimal() or value.startswith("0"):
        return None
    return Arm(
        name=f"threads_{value}",
        meaning=f"float32, {value} thread(s)",
        role=Role.NULL,
        threads=int(value),
    )


def _gaussian(value: str) -> Arm | None:
    try:
        scale = float(value)
    except ValueError:
        return None
    if not 0 <= scale < math.inf or not value[0].isdigit():
        return None
    spec = f"gradient_gaussian:scale={value}"
    _check_noise(f"gaussian_{value}", spec)
    return Arm(
        name=f"gaussian_{value}",
        meaning=f"Gaussian noise of {value} times the gradient's norm",
        role=Role.GAUSSIAN,
        noise=spec,
        scale=scale,
    )


def _spec(value: str) -> Arm:
    _check_noise(f"noise:{value}", value)
    return Arm(name=f"noise:{value}", meaning=value, noise=value)


def _convolution(value: str) -> Arm | None:
    if value not in CONVOLUTIONS[1:]:  # `auto` is the control's.
        return None
    return Arm(
        name=f"convolution_{value}",
        meaning=f"{value} convolutions, another fixed order",
        role=Role.NULL,
        convolution=value,
    )


#: Families of arms: what their names begin with, what follows, and how one is made.
_FAMILIES: tuple[tuple[str, str, Callable[[str], Arm | None]], ...] = (
    ("threads_", "<n>", _threads),
    ("gaussian_", "<scale>", _gaussian),
    ("noise:", "<spec>", _spec),
    ("convolution_", f"<{'|'.join(CONVOLUTIONS[1:])}>", _convolution),
)
#: The arms whose sums have one order in all their updates: the control of a noise.
FIXED_ORDERS = statistics.Group(
    "fixed_orders",
    (
        *("float32", "reduction_order_run", "gpu_order"),
        *(f"convolution_{name}" for name in CONVOLUTIONS[1:]),
    ),
)
#: Every name, as in help texts.
NAMES = (*_BY_NAME, *(prefix + value for prefix, value, _ in _FAMILIES))


def arm(name: str) -> Arm:
    """Returns the arm of a name; a UserError lists the names that are accepted."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    for prefix, _, make in _FAMILIES:
        if name.startswith(prefix) and (match := make(name.removeprefix(prefix))):
            return match
    raise UserError(f"arm={name!r}: expected one of {', '.join(NAMES)}")


def _check_noise(name: str, text: str) -> None:
    with named(f"arm={name!r}"):
        spec = noise.parse(text)
    if spec == noise.Identity():
        raise UserError(f"arm={name!r}: expected a noise, such as noise:ulp:max_ulps=2")


def names(words: Sequence[str]) -> tuple[str, ...]:
    """Returns names of arms from a text that was cut at its commas.

    A spec may contain commas: `noise:gaussian:scale=1e-3,relative=false` is one name.
    """
    joined: list[str] = []
    for word in words:
        option, equals, _ = word.partition("=")
        in_spec = bool(joined) and joined[-1].startswith("noise:")
        if in_spec and equals and option.isidentifier():
            joined[-1] += f",{word}"
        else:
            joined.append(word)
    return tuple(joined)
