"""Tables of what the study measures along the way (part F), from committed records.

results/study/F/plateau_<seed>.json       of probe_curvature.py, on the plateau
results/study/F/probe_<seed>.json         of probe_curvature.py, after it
results/study/F/divergence_<size>_<seed>.json   of divergence.py
results/study/F/octopus.json              of saddle_escape.py
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import records
from prednet_jax.report.documents import markdown
from prednet_jax.report.numbers import MISSING, probability
from prednet_jax.studies.symmetric_findings import summary

SEEDS_PROBED, SEEDS_FOLLOWED = range(8550, 8553), range(8560, 8563)
SIZES = ("16x12", "32x24", "64x48")


def blocks(folder: Path) -> dict[str, str]:
    """The tables by the name that documents mark them with.

    A table is shown once all of its records are there.

    Args:
        folder: results/study/F.
    """
    probes = {seed: probe_paths(folder, seed) for seed in SEEDS_PROBED}
    pairs = {
        size: [folder / f"divergence_{size}_{seed}.json" for seed in SEEDS_FOLLOWED]
        for size in SIZES
    }
    octopus = folder / "octopus.json"
    made = dict.fromkeys(
        ("study-F-curvature", "study-F-divergence", "study-F-octopus"),
        "Not measured yet.",
    )
    if all(path.exists() for paths in probes.values() for path in paths):
        made["study-F-curvature"] = curvature(
            {
                seed: [row for path in paths for row in records.read_json(path)["rows"]]
                for seed, paths in probes.items()
            }
        )
    if all(path.exists() for paths in pairs.values() for path in paths):
        made["study-F-divergence"] = divergence(
            {size: list(map(records.read_json, paths)) for size, paths in pairs.items()}
        )
    if octopus.exists():
        made["study-F-octopus"] = escape(records.read_json(octopus)["groups"])
    return made


def probe_paths(folder: Path, seed: int) -> list[Path]:
    """Records of the curvature along a training, in the order of its updates."""
    return [folder / f"{name}_{seed}.json" for name in ("plateau", "probe")]


def curvature(probes: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
    """Every stop of every training.

    Args:
        probes: rows of `curvature_probe` by seed.
    """
    head = (
        "seed",
        "update",
        "loss",
        "gradient norm",
        "lowest, highest of H",
        "the same under Adam's scale",
        "negative curvature",
        "differences of the loss",
        "quadratic for so many last steps",
        "growth per update",
        "cosine of the last step with it",
        "updates that the noise saves",
    )
    rows = []
    for seed, stops in probes.items():
        for row in stops:
            raw, scaled, found = row["raw"], row["preconditioned"], row["escape"]
            proved = scaled["negative_curvature_proved"]
            differences = scaled["finite_difference"]
            rows.append(
                (
                    str(seed),
                    str(row["update"]),
                    f"{row['loss']:.3g}",
                    f"{row['grad_norm']:.2g}",
                    f"{raw['lowest']:.2g}, {raw['highest']:.2g}",
                    f"{scaled['lowest']:.2g}, {scaled['highest']:.2g}",
                    "proved" if proved else "not found",
                    differences["verdict"],
                    f"{differences['reach'] / found['step_length']:.1f}"
                    if found and differences["verdict"] == "agrees"
                    else MISSING,
                    f"{found['growth_per_update']:.2f}" if found else MISSING,
                    f"{found['step_cosine']:.3f}" if found else MISSING,
                    f"{found['updates_saved']:.0e}" if found else MISSING,
                )
            )
    return markdown(head, rows)


def divergence(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Growth of the distance from the clean twin, over the seeds of each size.

    Args:
        found: records of divergence.py by size of the frame.
    """
    head = (
        "frame",
        "growth rate per update",
        "distance / travelled at update 50",
        "at update 250",
        "loss of the last fifth, over clean",
    )
    rows = []
    for size, pairs in found.items():
        apart = [
            np.array(one["distance"][1:]) / np.array(one["travelled"][1:])
            for one in pairs
        ]
        rates = [one["exponent"]["rate"] for one in pairs if one["exponent"]]
        rows.append(
            (
                size,
                summary(rates, "{:.3f}".format) if rates else MISSING,
                summary([ratio[49] for ratio in apart], "{:.1e}".format),
                summary([ratio[-1] for ratio in apart], "{:.1e}".format),
                summary(
                    [100 * (b / a - 1) for a, b in (p["mean_losses"] for p in pairs)],
                    "{:+.3f} %".format,
                ),
            )
        )
    return markdown(head, rows)


def escape(groups: Sequence[Mapping[str, Any]]) -> str:
    """How many runs passed every saddle, without noise and under each.

    A run stands still if its last step changed no bit.

    Args:
        groups: of saddle_escape.py, one case.
    """
    head = (
        "noise",
        "runs",
        "left the first saddle",
        "passed all",
        "stand still",
        "p (Holm)",
    )
    return markdown(
        head,
        [
            (
                f"`{group['noise']}`",
                str(len(group["arrived"])),
                str(sum(group["escaped"])),
                str(sum(group["arrived"])),
                str(sum(group["still"])),
                probability(group["arrival_p_holm"]),
            )
            for group in groups
        ],
    )
