"""From runs on disk to margin, contrasts and verdict."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prednet_jax import records, statistics
from prednet_jax.noise import variability
from prednet_jax.study.design import CONTROL, EMULATED, STALE, Design, Job

Runs = dict[str, list[records.Run]]
EXAMPLES = "examples.npz"
# Relative noise of random order on a gradient of PredNet (BUILD_NOTES.md).
MATCHED_SCALE = 2.7e-7
EXCLUSION_RULE = (
    "a seed whose loss is not finite in the averaged updates of either arm is left out "
    "of that contrast, in both arms, and counted; nothing else is left out"
)


def read(jobs: list[Job]) -> Runs:
    """Runs by arm, seeds in order.

    Raises:
        RecordError: a record is missing, or arms did not start alike.
    """
    found = {
        job.arm.name: [records.read_run(job.run_folder(seed)) for seed in job.seeds]
        for job in jobs
    }
    records.check_comparable([run for runs in found.values() for run in runs])
    return found


def metric(runs: list[records.Run], last: int) -> np.ndarray:
    """Mean loss of the last updates of each run, `[seeds]`."""
    return np.asarray([run.metrics["loss"][-last:].mean() for run in runs])


@dataclasses.dataclass(frozen=True)
class Pilot:
    """What the pilot of a model fixes before the first main run.

    Attributes:
        margin: the margin of equivalence.
        spread: standard deviation over the seeds of the differences between treatment
            and control, which is what power is planned by.
        left_out: seeds that diverged in one arm, left out of all, each with `seed` and
            `reason`.
    """

    margin: statistics.Margin
    spread: float
    left_out: tuple[dict[str, Any], ...] = ()

    def planned_power(self, seeds: int) -> float:
        """Power of the equivalence test with that many seeds, at no difference."""
        return statistics.tost_power(seeds, margin=self.margin.value, sd=self.spread)

    def as_dict(self) -> dict[str, Any]:
        """A JSON object: the margin, and what it was fixed with."""
        return self.margin.as_dict() | {
            "pilot_sd_of_differences": self.spread,
            "pilot_left_out": list(self.left_out),
        }


def fix_margin(design: Design, model: str) -> Pilot:
    """The margin of equivalence, written to disk before the first main run.

    Args:
        design: the comparison; its pilot has run.
        model: the model.

    Returns:
        The margin, and what it was fixed with. The origin of the margin names the
        seeds that were left out.

    Raises:
        ValueError: fewer than two seeds of the pilot are left, or their losses fix no
            margin.
    """
    jobs = [job for job in design.pilot() if job.model == model]
    found = read(jobs)
    last = design.metric_updates(model)
    losses = {arm: metric(runs, last) for arm, runs in found.items()}
    finite = np.isfinite(list(losses.values())).all(axis=0)
    left_out = tuple(
        {"seed": jobs[0].seeds[i], "reason": _not_finite(losses, i)}
        for i in np.flatnonzero(~finite).tolist()
    )
    if finite.sum() < 2:
        raise ValueError(
            f"pilot of {model}: {finite.sum()} of {finite.size} seeds ended with a "
            "finite loss in every arm, expected at least 2"
        )
    losses = {arm: values[finite] for arm, values in losses.items()}
    control = losses[CONTROL]
    # Stale targets cannot move a network with one image an update.
    stale = None if model == "autoencoder" else losses[STALE]
    try:
        margin = statistics.margin(control, stale)
    except ValueError as error:
        raise ValueError(f"pilot of {model}: {error}") from None
    for row in left_out:
        origin = f"{margin.origin}; without seed {row['seed']} ({row['reason']})"
        margin = dataclasses.replace(margin, origin=origin)
    spread = float(np.std(losses[EMULATED] - control, ddof=1))
    pilot = Pilot(margin, spread, left_out)
    records.write_json(design.root / f"margin_{model}.json", pilot.as_dict())
    return pilot


def judge(
    design: Design,
    pilots: Mapping[str, Pilot],
    controls: Mapping[str, Any],
    find_stall: Callable[[str, Job], statistics.Stall | None],
) -> dict[str, Any]:
    """All contrasts and verdicts, as verdict.json holds them.

    Args:
        design: the comparison; its runs are on disk.
        pilots: what `fix_margin` gave, by model.
        controls: the positive controls, with `theory_matched` and `units_separated`.
        find_stall: probes the curvature of a model's control run; asked only where
            noise lowered the loss beyond the margin, since only then it decides.
    """
    jobs = design.runs()
    contrasts, verdicts, arms, prints = [], {}, [], {}
    excluded: list[dict[str, Any]] = []
    for model in design.models:
        mine = [job for job in jobs if job.model == model]
        found = read(mine)
        margin, spread = pilots[model].margin, pilots[model].spread
        results, left_out = _contrasts(design, model, found, margin.value)
        excluded += left_out
        emulated = results[EMULATED]
        gpu = _gpu(results)
        stall = None
        if emulated.ci_high < -margin.value or (
            gpu is not None and gpu.reversed().ci_high < -margin.value
        ):
            stall = find_stall(model, mine[0])
        asked = {EMULATED} | ({"gpu_deterministic"} if gpu is not None else set())
        diverged = {row["seed"] for row in left_out if row["treatment"] in asked}
        evidence = dataclasses.replace(
            _evidence(model, results, spread, controls, stall), diverged=len(diverged)
        )
        verdicts[model] = statistics.decide(evidence).as_dict()
        last = design.metric_updates(model)
        contrasts += [
            result.as_dict() | _beside(found[name], found[result.control or ""], last)
            for name, result in results.items()
        ]
        prints[model] = {
            str(run.manifest["seed"]): {
                field: run.manifest[field]
                for field in ("initial_params_sha256", "data_order_sha256")
            }
            for run in found[CONTROL]
        }
        arms += [_arm(job, found[job.arm.name]) for job in mine]
        arms += [
            {"model": model, "name": name, "status": f"skipped: {reason}"}
            for name, reason in design.skipped
        ]
    first = records.read_run(jobs[0].run_folder(jobs[0].seeds[0])).manifest
    return {
        "contrasts": contrasts,
        "verdict": {model: found["verdict"] for model, found in verdicts.items()},
        "details": verdicts,
        "margins": {model: pilot.as_dict() for model, pilot in pilots.items()},
        "controls": dict(controls),
        "arms": arms,
        "excluded": excluded,
        "fingerprints": prints,
        "design": {
            "seeds": list(jobs[0].seeds),
            "pilot_seeds": list(design.pilot()[0].seeds),
            "metric": {model: design.metric_name(model) for model in design.models},
            "last_updates": {m: design.metric_updates(m) for m in design.models},
            "versions": first["versions"],
            "git_commit": first["git_commit"],
            "exclusion_rule": EXCLUSION_RULE,
            "device": first["device"],
        },
    }


def _contrasts(
    design: Design, model: str, found: Runs, margin: float
) -> tuple[dict[str, statistics.PairedResult], list[dict[str, Any]]]:
    """Every arm against the control; deterministic against default on the GPU.

    Returns:
        The results after Holm, and what `EXCLUSION_RULE` left out of them.

    Raises:
        ValueError: no seed of a contrast is left.
    """
    last = design.metric_updates(model)
    pairs = {name: CONTROL for name in found if name != CONTROL}
    if "gpu" in found and "gpu_deterministic" in found:
        pairs["gpu_deterministic"] = "gpu"
    results, excluded = [], []
    for treatment, control in pairs.items():
        kept = _kept(found[treatment], found[control], last)
        if not kept.any():
            raise ValueError(
                f"{treatment} - {control} of {model}: no seed with a finite loss in "
                "both arms; expected at least one"
            )
        values = [metric(found[name], last)[kept] for name in (treatment, control)]
        results.append(
            statistics.paired(*values, margin=margin).labelled(
                model=model,
                treatment=treatment,
                control=control,
                metric=design.metric_name(model),
            )
        )
        for run, other, keep in zip(
            found[treatment], found[control], kept, strict=True
        ):
            if keep:
                continue
            losses = {treatment: metric([run], last), control: metric([other], last)}
            excluded.append(
                {
                    "model": model,
                    "treatment": treatment,
                    "control": control,
                    "seed": run.manifest["seed"],
                    "reason": _not_finite(losses, 0),
                }
            )
    corrected = statistics.holm(results, f"all {len(results)} contrasts of {model}")
    return dict(zip(pairs, corrected, strict=True)), excluded


def _not_finite(losses: Mapping[str, np.ndarray], seed: int) -> str:
    """Why `EXCLUSION_RULE` leaves out the seed at a place in the losses of arms."""
    broken = [arm for arm, found in losses.items() if not np.isfinite(found[seed])]
    return f"loss not finite in {' and '.join(broken)}"


def _kept(runs: list[records.Run], control: list[records.Run], last: int) -> np.ndarray:
    """Which seeds `EXCLUSION_RULE` keeps, bool `[seeds]`."""
    return np.isfinite(metric(runs, last)) & np.isfinite(metric(control, last))


def _evidence(
    model: str,
    results: Mapping[str, statistics.PairedResult],
    spread: float,
    controls: Mapping[str, Any],
    stall: statistics.Stall | None,
) -> statistics.Evidence:
    """What the decision rule looks at."""
    ladder = [
        (float(name.removeprefix("gaussian_")), result)
        for name, result in results.items()
        if name.startswith("gaussian_")
    ]
    # The rung nearest to the size of reduction-order noise stands for it, if within a
    # factor of ten; it is none of the ladder's, which asks whether more noise helps.
    near = {scale: abs(math.log10(scale / MATCHED_SCALE)) for scale, _ in ladder}
    nearest = min(near, key=near.__getitem__, default=math.nan)
    matched = [r for scale, r in ladder if scale == nearest and near[scale] <= 1]
    ladder = [(scale, r) for scale, r in ladder if r not in matched]
    nulls = [
        result
        for name, result in results.items()
        if name.startswith(("threads_", "convolution_"))
    ]
    stale = results.get(STALE)
    applies = model != "autoencoder"
    if stale is not None and not applies:
        nulls.append(stale)
    return statistics.Evidence(
        model=model,
        emulated=results[EMULATED],
        gpu=_gpu(results),
        emulated_pilot_sd=None if math.isnan(spread) else spread,
        null=tuple(nulls),
        gaussian_matched=matched[0] if matched else None,
        gaussian_ladder=tuple(ladder),
        stale=stale if applies else None,
        stale_applies=applies,
        theory_matched=controls["theory_matched"],
        units_separated=controls["units_separated"],
        stall=stall,
    )


def _gpu(
    results: Mapping[str, statistics.PairedResult],
) -> statistics.PairedResult | None:
    """Deterministic minus default algorithms on the GPU, where both were run."""
    found = results.get("gpu_deterministic")
    return found if found is not None and found.control == "gpu" else None


def _beside(
    runs: list[records.Run], control: list[records.Run], last: int
) -> dict[str, Any]:
    """What a row of the table shows beside the contrast, of the seeds kept."""
    kept = _kept(runs, control, last)
    same = [
        a.manifest["final_params_sha256"] == b.manifest["final_params_sha256"]
        for a, b, keep in zip(runs, control, kept, strict=True)
        if keep
    ]
    return {
        "treatment_mean": float(metric(runs, last)[kept].mean()),
        "control_mean": float(metric(control, last)[kept].mean()),
        "bitwise_equal": sum(same),
        "n_excluded": int((~kept).sum()),
        "variability": _variability(
            [
                (run.directory / EXAMPLES, other.directory / EXAMPLES)
                for run, other, keep in zip(runs, control, kept, strict=True)
                if keep
            ]
        ),
    }


def _variability(pairs: list[tuple[Path, Path]]) -> dict[str, float] | None:
    """How far the predictions of paired runs are apart, in the mean over the seeds.

    The frames are the same in both arms. `churn` is the fraction of pixels whose shade
    of 256 differs. None where an arm did not keep its predictions.
    """
    if not pairs or not all(path.exists() for pair in pairs for path in pair):
        return None
    measured = []
    for path, other in pairs:
        ours, theirs = _predictions(path), _predictions(other)
        measured.append(
            {
                # The control is the reference.
                "v_ermv": variability.v_ermv(theirs, ours),
                "v_c": variability.v_c(theirs, ours),
                "l2": variability.l2_distance(theirs, ours),
                "churn": variability.churn(theirs, ours, decide=_shades),
            }
        )
    return {name: float(np.mean([m[name] for m in measured])) for name in measured[0]}


def _predictions(path: Path) -> np.ndarray:
    with np.load(path) as stored:
        return stored["predictions"]


def _shades(predictions: np.ndarray) -> np.ndarray:
    return np.rint(255 * predictions)


def _arm(job: Job, runs: list[records.Run]) -> dict[str, Any]:
    """One row of the table of arms."""
    manifest = runs[0].manifest
    # The first update of a process compiles.
    seconds = np.concatenate([run.metrics["seconds"][1:] for run in runs])
    gpu = {"gpu": manifest["device"]["kind"]} if job.arm.gpu else {}
    return {
        "model": job.model,
        "name": job.arm.name,
        "meaning": job.arm.meaning,
        "command": job.shown,
        "status": "run",
        "noise": manifest["noise"],
        "threads": manifest["device"]["threads"],
        "measured_parallelism": manifest["measured_parallelism"],
        "seconds_per_update": float(np.median(seconds)),
    } | gpu


def stalled_at(losses: np.ndarray, *, width: int = 10) -> int | None:
    """The update in the middle of a plateau that the loss later leaves.

    A plateau is a fifth of the updates over which the running mean of the loss (over
    `width` updates) falls by less than 2 %; it is left when the loss ends at less than
    nine tenths of its level.

    Args:
        losses: `[updates]`.
        width: updates of the running mean.

    Returns:
        The update, from 1, or None where training does not stall.
    """
    smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
    span = max(1, len(losses) // 5)
    for start in range(len(smooth) - span):
        level, end = smooth[start], smooth[start + span]
        if 0.98 * level < end and smooth[-1] < 0.9 * min(level, end):
            return start + span // 2 + width // 2 + 1
    return None
