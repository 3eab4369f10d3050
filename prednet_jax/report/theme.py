"""How the figures look: two themes, one palette, PNG out.

The palette is that of Okabe & Ito (2008, "Color universal design"), which people with
any of the common colour deficiencies can tell apart, and a violet; lighter shades stand
on dark ground. Names beside the lines carry the same information.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    Locator,
    LogLocator,
    MaxNLocator,
    NullLocator,
)
from PIL import Image

# Twice the pixels that a figure gets on a page of usual width.
DPI = 168
_NO_DITHER = Image.Dither.NONE


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of the ground and the ink.

    Attributes:
      name: "light" or "dark".
      ground: behind everything.
      ink: text and the control's line.
      muted: secondary text, axes.
      faint: grid lines and zones.
      colours: one per role of an arm.
    """

    name: str
    ground: str
    ink: str
    muted: str
    faint: str
    colours: dict[str, str]


_OKABE_ITO = {
    "stale": "#D55E00",
    "treatment": "#0072B2",
    "descriptive": "#56B4E9",
    "gaussian": "#E69F00",
    "gpu": "#009E73",
    "gpu_deterministic": "#7B5CB8",
}
LIGHT = Theme(
    name="light",
    ground="#ffffff",
    ink="#1d2125",
    muted="#626a73",
    faint="#e4e5e3",
    colours=_OKABE_ITO | {"null": "#8a8f96"},
)
DARK = Theme(
    name="dark",
    ground="#1c2025",
    ink="#eceae4",
    muted="#a0a7b0",
    faint="#343a42",
    colours=_OKABE_ITO
    | {
        "stale": "#F07A2A",
        "treatment": "#4FA8E8",
        "descriptive": "#F0E442",
        "gpu_deterministic": "#A98BE0",
        "null": "#8f969e",
    },
)
THEMES = (LIGHT, DARK)
_WORDS = {
    "treatment": "random order",
    "stale": "stale targets",
    "gpu": "GPU",
    "gpu_deterministic": "GPU, fixed",
}


def key(role: str | None) -> str:
    """The name of an arm's colour by its role; "muted" where none was recorded."""
    if role == "control":
        return "ink"
    return role if role in LIGHT.colours else "muted"


def shade(name: str, theme: Theme) -> str:
    """A colour by its name: "ink", "muted" or a role."""
    return {"ink": theme.ink, "muted": theme.muted}.get(name) or theme.colours[name]


def colour(role: str | None, theme: Theme) -> str:
    """The colour of an arm by its role; grey where none was recorded."""
    return shade(key(role), theme)


def plain_name(arm: str, role: str | None) -> str:
    """What an arm is for in words, or its name."""
    return _WORDS.get(role or "", arm)


@contextmanager
def canvas(theme: Theme, width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches, with the theme's settings while it is drawn."""
    settings: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "figure.facecolor": theme.ground,
        "axes.facecolor": theme.ground,
        "axes.edgecolor": theme.muted,
        "axes.labelcolor": theme.muted,
        "axes.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "grid.color": theme.faint,
        "grid.linewidth": 0.8,
        "text.color": theme.ink,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
        "lines.solid_capstyle": "round",
    }
    with mpl.rc_context(settings):
        yield Figure(figsize=(width, height), dpi=DPI)


def png(figure: Figure, *, photographs: bool = False) -> bytes:
    """The figure as PNG; the same drawing always gives the same bytes.

    Args:
      figure: made by `canvas`.
      photographs: keep all colours. Line drawings need few, and a palette of them
        makes a file of a third of the size.
    """
    drawn = FigureCanvasAgg(figure)
    drawn.draw()
    image = Image.fromarray(np.asarray(drawn.buffer_rgba())).convert("RGB")
    if not photographs:
        image = image.quantize(192, method=Image.Quantize.MEDIANCUT, dither=_NO_DITHER)
    buffer = io.BytesIO()
    image.save(buffer, format="png", optimize=not photographs)
    return buffer.getvalue()


def plain_png(figure: Figure, **options: Any) -> bytes:
    """A figure without a theme as PNG; options are those of `Figure.savefig`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", **({"dpi": 150} | options))
    return buffer.getvalue()


def log_axis(axes: Axes) -> None:
    """A logarithmic y axis with a few plain numbers; call it when all is drawn."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ratio = high / low
    if ratio < 2:
        locator: Locator = MaxNLocator(4)
    else:
        subs = (1, 2, 3, 5, 7) if ratio < 6 else (1, 2, 5) if ratio < 200 else (1,)
        locator = LogLocator(subs=subs, numticks=20)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
    axes.grid(visible=False, axis="x")
    axes.spines["left"].set_visible(False)
