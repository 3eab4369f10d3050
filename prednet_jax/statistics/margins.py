"""The equivalence margin: fixed from a pilot, recorded before the results exist.

margin = min(half the between-seed standard deviation of the control,
             a fifth of the stale-target gap)

in units of the loss. Two arms that differ by less cannot be told from a change of
initial weights, nor from a fraction of a defect whose effect is known. It never comes
from the standard deviation of the differences: a margin that shrinks with the noise of
the study would make equivalence a matter of sample size alone.
"""

import dataclasses
import json
import math
import os
import pathlib
from typing import Any

from numpy.typing import ArrayLike

from prednet_jax.statistics.paired import per_seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Margin:
    """A margin and where it came from, all in units of the loss.

    Attributes:
      value: the margin, > 0.
      half_seed_sd: half the standard deviation over the seeds of the control pilot.
      fifth_stale_gap: a fifth of |mean(stale) - mean(control)| in the pilot.
      n_control: seeds of the control pilot.
      n_stale: seeds of the stale-target pilot.
      origin: the same in words.
    """

    value: float
    half_seed_sd: float
    fifth_stale_gap: float
    n_control: int
    n_stale: int
    origin: str

    def as_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return dataclasses.asdict(self)


def margin(control_pilot: ArrayLike, stale_pilot: ArrayLike) -> Margin:
    """The margin that a pilot fixes.

    Args:
      control_pilot: loss of the deterministic control, [n] or [n, replicates], n >= 2.
      stale_pilot: loss of the stale-target arm, [m] or [m, replicates], m >= 1.

    Returns:
      The margin with its origin.

    Raises:
      ValueError: fewer than two control seeds, values that are not finite, or a pilot
        without spread or without a gap, which cannot fix a margin.
    """
    control = per_seed("control_pilot", control_pilot)
    stale = per_seed("stale_pilot", stale_pilot)
    if control.size < 2:
        raise ValueError(
            f"control_pilot has {control.size} seed; at least 2 are needed for the "
            "spread between seeds"
        )
    half_sd = float(control.std(ddof=1)) / 2
    gap = float(stale.mean() - control.mean())
    value = min(half_sd, abs(gap) / 5)
    if not value > 0:
        raise ValueError(
            f"the pilot has a between-seed sd of {2 * half_sd} and a stale-target gap "
            f"of {gap}; both must differ from 0 to fix a margin"
        )
    which = (
        f"half the between-seed standard deviation ({2 * half_sd:.3g})"
        if half_sd <= abs(gap) / 5
        else f"a fifth of the stale-target gap ({gap:+.3g})"
    )
    origin = (
        f"{which} of a pilot of {control.size} control and {stale.size} stale seeds"
    )
    return Margin(
        value=value,
        half_seed_sd=half_sd,
        fifth_stale_gap=abs(gap) / 5,
        n_control=int(control.size),
        n_stale=int(stale.size),
        origin=origin,
    )


def fix_margin(path: str | os.PathLike[str], found: Margin) -> Margin:
    """Writes a margin once; a margin on record is never replaced.

    Args:
      path: JSON file of the record.
      found: what the pilot says.

    Returns:
      `found`, now on record.

    Raises:
      ValueError: the file holds another margin. A margin that moves after results
        exist decides nothing, so a new study needs a new directory.
    """
    path = pathlib.Path(path)
    if path.exists():
        recorded = json.loads(path.read_text())
        if not math.isclose(
            recorded.get("value", math.nan), found.value, rel_tol=1e-12
        ):
            raise ValueError(
                f"{path} fixes the margin at {recorded.get('value')} and the pilot now "
                f"says {found.value}; use a fresh directory for a new study"
            )
        return found
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(found.as_dict(), indent=2) + "\n")
    os.replace(partial, path)
    return found
