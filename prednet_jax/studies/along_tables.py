"""Tables of what the study measures along the way (part F), from committed records.

results/study/F/plateau_<seed>.json       of probe_curvature.py, on the plateau
results/study/F/probe_<seed>.json         of probe_curvature.py, after it
results/study/F/divergence_<size>_<seed>.json   of divergence.py
results/study/F/octopus.json              of saddle_escape.py
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from prednet_jax import records
from prednet_jax.report.document_tables import proved
from prednet_jax.report.documents import markdown, spread

SEEDS_PROBED, SEEDS_FOLLOWED = range(8550, 8553), range(8560, 8563)
SIZES = ("16x12", "32x24", "64x48")


def blocks(folder: Path) -> dict[str, str]:
    """The tables by the name that documents mark them with.

    Args:
        folder: results/study/F.
    """
    pairs = [
        records.read_json(folder / f"divergence_{size}_{seed}.json") | {"frame": size}
        for size in SIZES
        for seed in SEEDS_FOLLOWED
    ]
    return {
        "study-F-curvature": curvature(stops(folder)),
        "study-F-divergence": divergence(pairs),
        "study-F-octopus": octopus(
            records.read_json(folder / "octopus.json")["groups"]
        ),
    }


def stops(folder: Path) -> pd.DataFrame:
    """Every stop of every training at which curvature was measured.

    Returns:
        The fields of `curvature_probe`, their names joined by dots; `seed`; and
        `reach`, for how many lengths of Adam's last step the loss is quadratic.
    """
    rows = [
        {"seed": seed} | row
        for seed in SEEDS_PROBED
        for name in ("plateau", "probe")
        for row in records.read_json(folder / f"{name}_{seed}.json")["rows"]
    ]
    return with_reach(pd.json_normalize(rows))


def with_reach(found: pd.DataFrame) -> pd.DataFrame:
    """Adds the column `reach`; it is missing where differences do not agree."""
    difference = "preconditioned.finite_difference"
    reach = found[f"{difference}.reach"] / found["escape.step_length"]
    return found.assign(reach=reach.where(found[f"{difference}.verdict"] == "agrees"))


def curvature(found: pd.DataFrame) -> str:
    """Every stop of every training, from `stops`."""
    cells = {
        "seed": "{seed}",
        "update": "{update}",
        "loss": "{loss:.3g}",
        "gradient norm": "{grad_norm:.2g}",
        "lowest, highest of H": "{raw.lowest:.2g}, {raw.highest:.2g}",
        "the same under Adam's scale": "{preconditioned.lowest:.2g}, "
        "{preconditioned.highest:.2g}",
        "negative curvature": proved,
        "differences of the loss": "{preconditioned.finite_difference.verdict}",
        "quadratic for so many last steps": "{reach:.1f}",
        "growth per update": "{escape.growth_per_update:.2f}",
        "cosine of the last step with it": "{escape.step_cosine:.3f}",
        "updates that the noise saves": "{escape.updates_saved:.0e}",
    }
    return markdown(found, cells)


def divergence(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Growth of the distance from the clean twin, over the seeds of each size.

    Args:
        pairs: records of divergence.py, each with the size as `frame`.
    """
    frame = pd.json_normalize(pairs)
    for name, update in (("early", 50), ("end", -1)):
        frame[name] = frame.distance.str[update] / frame.travelled.str[update]
    frame["change"] = [100 * (noisy / clean - 1) for clean, noisy in frame.mean_losses]

    return markdown(
        frame.groupby("frame", sort=False)
        .agg(lambda v: v.dropna().tolist())
        .reset_index(),
        {
            "frame": "{frame}",
            "growth rate per update": spread("exponent.rate", "{:.3f}"),
            "distance / travelled at update 50": spread("early", "{:.1e}"),
            "at update 250": spread("end", "{:.1e}"),
            "loss of the last fifth, over clean": spread("change", "{:+.3f} %"),
        },
    )


def octopus(groups: Sequence[Mapping[str, Any]]) -> str:
    """How many runs passed every saddle, without noise and under each.

    A run stands still if its last step changed no bit.

    Args:
        groups: of saddle_escape.py, one case.
    """
    frame = pd.DataFrame(groups)
    events = frame[["escaped", "arrived", "still"]].map(sum)
    return markdown(
        frame.assign(runs=frame.arrived.map(len), **events),
        {
            "noise": "`{noise}`",
            "runs": "{runs}",
            "left the first saddle": "{escaped}",
            "passed all": "{arrived}",
            "stand still": "{still}",
            "p (Holm)": "{arrival_p_holm:prob}",
        },
    )
