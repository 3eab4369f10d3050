"""Trains every arm on the same weights and data, and ends in a verdict.

    python experiments/compare_backends.py --workdir=results/compare

Each arm is a process of its own (`experiments/train.py`). A pilot on seeds of its own
fixes the margin of equivalence before the main runs start. Writes verdict.json,
report.html and one directory a run.
"""

import contextlib
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import common
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
CONTROL = "float32"
# The arms that carry the question; the others are nulls and positive controls.
EMULATED = "reduction_order"
flags.DEFINE_list("models", ["prednet", "autoencoder"], "Networks to compare.")
flags.DEFINE_list(
    "arms",
    [
        "float32",
        "float64",
        "threads_1",
        "reduction_order",
        "ulp",
        "gaussian_2.7e-7",
        "gaussian_1",
        "stale_targets",
        "gpu",
        "gpu_deterministic",
    ],
    "Arms to run; float32, the control, is always among them. GPU arms are skipped, "
    "with the reason printed, where no GPU is found.",
)
flags.DEFINE_integer("seeds", 10, "Seeds of the main runs: 0, 1, ...")
flags.DEFINE_integer("pilot_seeds", 4, "Seeds of the pilot: 1000, 1001, ...")
flags.DEFINE_list("channels", ["3", "6", "12"], "Widths of PredNet's layers.")
flags.DEFINE_integer("height", 24, "Rows of a frame.")
flags.DEFINE_integer("width", 32, "Columns of a frame.")
flags.DEFINE_enum("variant", "watanabe", ["watanabe"], "Form of PredNet.")
flags.DEFINE_string("data", "walk", "Frames of PredNet, as in train.py.")
flags.DEFINE_string("images", "digits", "Images of the autoencoder.")
flags.DEFINE_integer("window", 20, "Transitions an update of PredNet.")
flags.DEFINE_integer("updates", 250, "Updates of PredNet.")
flags.DEFINE_integer("image_updates", 1000, "Updates of the autoencoder.")
flags.DEFINE_float("last", 0.2, "The metric is the mean loss of this last fraction.")
flags.DEFINE_string("workdir", "results/compare", "Where to write.")
flags.DEFINE_bool("dry_run", False, "Print the exact commands and the time, no more.")
PILOT_FIRST = 1000


@dataclasses.dataclass(frozen=True)
class Job:
    """One process: one arm of one model, all its seeds."""

    model: str
    arm: object
    seeds: tuple[int, ...]
    folder: Path
    command: tuple[str, ...]

    def shown(self) -> str:
        """The exact command, environment in front."""
        variables = [f"{k}={v}" for k, v in self.arm.environment]
        return shlex.join([*variables, "python", *self.command])


def main(argv: list[str]) -> None:
    """Checks, runs, judges, reports."""
    del argv
    started = time.perf_counter()
    check_flags()
    arms, skipped = chosen_arms()
    root = Path(FLAGS.workdir)
    pilot = [
        job(model, arm, seeds(PILOT_FIRST, FLAGS.pilot_seeds), root / "pilot")
        for model in FLAGS.models
        for arm in arms
        if arm.name in (CONTROL, EMULATED, "stale_targets")
    ]
    runs = [
        job(model, arm, seeds(0, FLAGS.seeds), root / "runs")
        for model in FLAGS.models
        for arm in arms
    ]
    for name, reason in skipped:
        print(f"skipped {name}: {reason}")
    if FLAGS.dry_run:
        for each in [*pilot, *runs]:
            print(each.shown())
        print(f"estimated time: {estimate([*pilot, *runs]) / 60:.0f} minutes")
        return
    for name in ("pilot", "runs", "verdict.json", "report.html"):
        remove(root / name)
    root.mkdir(parents=True, exist_ok=True)
    total = len(pilot) + len(runs)
    for number, each in enumerate(pilot, 1):
        execute(each, number, total)
    margins = {model: fix_margin(root, model) for model in FLAGS.models}
    for number, each in enumerate(runs, len(pilot) + 1):
        execute(each, number, total)
    verdict = judge(root, margins, runs, skipped)
    verdict["seconds"] = time.perf_counter() - started
    publish(root, verdict)


def check_flags() -> None:
    """Refuses bad values before anything is written."""
    for name, low in (
        ("seeds", 2),
        ("pilot_seeds", 2),
        ("updates", 5),
        ("image_updates", 5),
        ("window", 2),
    ):
        if getattr(FLAGS, name) < low:
            raise ValueError(
                f"--{name}={getattr(FLAGS, name)}: expected at least {low}"
            )
    if not 0 < FLAGS.last <= 1:
        raise ValueError(f"--last={FLAGS.last}: expected a fraction in (0, 1]")
    for model in FLAGS.models:
        if model not in common.MODELS:
            raise ValueError(
                f"--models={model}: expected one of {', '.join(common.MODELS)}"
            )
    from prednet_jax.config import PredNetConfig

    PredNetConfig(
        channels=common.integers("channels", FLAGS.channels) or (),
        height=FLAGS.height,
        width=FLAGS.width,
    )


def chosen_arms() -> tuple[list, list[tuple[str, str]]]:
    """The arms to run, the control first, and those skipped with the reason."""
    from prednet_jax import backends

    names = [CONTROL, *(name for name in FLAGS.arms if name != CONTROL)]
    arms = [backends.arm(name) for name in dict.fromkeys(names)]
    if backends.gpu_found():
        return arms, []
    skipped = [(arm.name, "no GPU found") for arm in arms if arm.gpu]
    return [arm for arm in arms if not arm.gpu], skipped


def seeds(first: int, count: int) -> tuple[int, ...]:
    """Consecutive seeds."""
    return tuple(range(first, first + count))


def job(model: str, arm, its_seeds: tuple[int, ...], root: Path) -> Job:
    """The process that trains one model under one arm."""
    folder = root / model / arm.name
    common_flags = [
        f"--model={model}",
        f"--seeds={','.join(map(str, its_seeds))}",
        f"--workdir={folder}",
    ]
    if model == "prednet":
        common_flags += [
            f"--variant={FLAGS.variant}",
            f"--channels={','.join(FLAGS.channels)}",
            f"--height={FLAGS.height}",
            f"--width={FLAGS.width}",
            f"--data={FLAGS.data}",
            f"--window={FLAGS.window}",
            f"--updates={FLAGS.updates}",
        ]
    else:
        common_flags += [f"--data={FLAGS.images}", f"--updates={FLAGS.image_updates}"]
    if arm.name in (CONTROL, "stale_targets") and root.name == "runs":
        common_flags += ["--examples=6"]
    script = Path(__file__).with_name("train.py")
    with contextlib.suppress(ValueError):  # started from elsewhere: keep it absolute
        script = script.relative_to(Path.cwd())
    return Job(model, arm, its_seeds, folder, (str(script), *common_flags, *arm.flags))


# Rough costs for --dry_run, in operations a second and against the clean step.
RATE = {"prednet": 8e9, "autoencoder": 2e9}
COST = {"float64": 2.0, "threads_1": 1.5, "reduction_order": 2.0, "ulp": 2.5}


def estimate(jobs: list[Job]) -> float:
    """Seconds, within a factor of two or so: start, compile, and work."""
    from prednet_jax.config import PredNetConfig
    from prednet_jax.models import prednet

    config = PredNetConfig(
        channels=common.integers("channels", FLAGS.channels) or (),
        height=FLAGS.height,
        width=FLAGS.width,
    )
    # Forward pass and two backward passes, a multiplication and an addition each.
    frame = 6 * sum(
        conv.height
        * conv.width
        * conv.filter_size**2
        * conv.in_channels
        * conv.out_channels
        for conv in prednet.convolutions(config).values()
    )
    total = 0.0
    for each in jobs:
        work = FLAGS.updates * FLAGS.window * frame
        if each.model == "autoencoder":
            work = FLAGS.image_updates * 6 * 250_000
        cost = COST.get(each.arm.name, 1.0)
        total += 20 + cost * len(each.seeds) * work / RATE[each.model]
    return total


def remove(path: Path) -> None:
    """Removes what an earlier comparison left under a name that is ours."""
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def execute(job: Job, number: int, total: int) -> None:
    """Runs one process to its end; its output goes to its directory's log."""
    title = f"[{number}/{total}] {job.folder.parent.parent.name} {job.model}"
    print(f"{title} {job.arm.name}: {job.arm.meaning}", flush=True)
    job.folder.mkdir(parents=True, exist_ok=True)
    log = job.folder / "log.txt"
    environment = os.environ | dict(job.arm.environment)
    shown = sys.stderr.isatty()
    with open(log, "w") as file:
        done = subprocess.run(
            [sys.executable, *job.command, f"--progress={shown}"],
            env=environment,
            stdout=file,
            stderr=None if shown else subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        tail = log.read_text().strip().splitlines()[-1:] or ["no output"]
        raise ValueError(
            f"arm {job.arm.name} of {job.model} ended with status {done.returncode} "
            f"({tail[0]}); see {log}; it was: {job.shown()}"
        )


def read(jobs: list[Job]) -> dict[str, list]:
    """Runs by arm, seeds in order; refuses arms that did not start alike."""
    from prednet_jax import records

    found = {
        each.arm.name: [
            records.read_run(each.folder / f"seed_{seed}") for seed in each.seeds
        ]
        for each in jobs
    }
    records.check_comparable([run for runs in found.values() for run in runs])
    return found


def metric(runs: list) -> np.ndarray:
    """Mean loss of the last part of each run, `[seeds]`."""
    kept = [run.metrics["loss"] for run in runs]
    count = max(1, round(FLAGS.last * len(kept[0])))
    return np.asarray([loss[-count:].mean() for loss in kept])


def metric_name(model: str) -> str:
    """The metric in words."""
    updates = FLAGS.updates if model == "prednet" else FLAGS.image_updates
    return f"mean loss of the last {max(1, round(FLAGS.last * updates))} updates"


def fix_margin(root: Path, model: str):
    """Margin and spread from the pilot, on disk before the first main run."""
    from prednet_jax import backends, records, statistics

    jobs = [
        job(
            model,
            backends.arm(name),
            seeds(PILOT_FIRST, FLAGS.pilot_seeds),
            root / "pilot",
        )
        for name in (CONTROL, EMULATED, "stale_targets")
    ]
    jobs = [each for each in jobs if each.folder.is_dir()]
    found = read(jobs)
    control = metric(found[CONTROL])
    if model == "prednet":
        margin = statistics.margin(control, metric(found["stale_targets"]))
    else:
        # Stale targets cannot move a network with one image a window, so the gap says
        # nothing there: the spread between seeds alone fixes the margin.
        half = float(control.std(ddof=1)) / 2
        margin = statistics.Margin(
            value=half,
            half_seed_sd=half,
            fifth_stale_gap=0.0,
            n_control=control.size,
            n_stale=control.size,
            origin=f"half the between-seed standard deviation ({2 * half:.3g}) of a "
            f"pilot of {control.size} seeds; stale targets do not move this network",
        )
    spread = None
    if EMULATED in found:
        spread = float(np.std(metric(found[EMULATED]) - control, ddof=1))
    path = root / "pilot" / f"margin_{model}.json"
    records.write_json(path, margin.as_dict() | {"pilot_sd_of_differences": spread})
    print(f"margin of {model}: {margin.value:.3g}, {margin.origin}", flush=True)
    return margin, spread


def judge(
    root: Path, margins: dict, jobs: list[Job], skipped: list[tuple[str, str]]
) -> dict:
    """All contrasts, controls and verdicts."""
    from prednet_jax import records, statistics

    controls = positive_controls()
    contrasts, verdicts, arms, prints = [], {}, [], {}
    for model in FLAGS.models:
        mine = [each for each in jobs if each.model == model]
        found = read(mine)
        margin, spread = margins[model]
        results = {
            name: statistics.paired(
                metric(runs), metric(found[CONTROL]), margin=margin.value
            ).labelled(
                model=model, treatment=name, control=CONTROL, metric=metric_name(model)
            )
            for name, runs in found.items()
            if name != CONTROL
        }
        if {"gpu", "gpu_deterministic"} <= set(found):
            results["gpu_deterministic"] = statistics.paired(
                metric(found["gpu_deterministic"]),
                metric(found["gpu"]),
                margin=margin.value,
            ).labelled(
                model=model,
                treatment="gpu_deterministic",
                control="gpu",
                metric=metric_name(model),
            )
        corrected = statistics.holm(list(results.values()))
        results = dict(zip(results, corrected, strict=True))
        verdicts[model] = statistics.decide(
            evidence(model, results, spread, controls)
        ).as_dict()
        contrasts += [
            result.as_dict() | comparison(found[name], found[result.control])
            for name, result in results.items()
        ]
        prints[model] = {
            str(run.manifest["seed"]): {
                field: run.manifest[field]
                for field in ("initial_params_sha256", "data_order_sha256")
            }
            for run in found[CONTROL]
        }
        arms += [arm_record(each, found[each.arm.name]) for each in mine]
        arms += [
            {"model": model, "name": name, "status": f"skipped: {reason}"}
            for name, reason in skipped
        ]
    manifest = records.read_run(jobs[0].folder / f"seed_{jobs[0].seeds[0]}").manifest
    return {
        "contrasts": contrasts,
        "verdict": {model: verdicts[model]["verdict"] for model in verdicts},
        "details": verdicts,
        "margins": {model: margins[model][0].as_dict() for model in margins},
        "controls": controls,
        "arms": arms,
        "excluded": [],
        "fingerprints": prints,
        "design": {
            "command": shlex.join(["python", *sys.argv]),
            "flags": {
                flag.name: flag.value
                for flag in FLAGS.get_key_flags_for_module("__main__")
            },
            "seeds": list(seeds(0, FLAGS.seeds)),
            "pilot_seeds": list(seeds(PILOT_FIRST, FLAGS.pilot_seeds)),
            "metric": {model: metric_name(model) for model in FLAGS.models},
            "versions": manifest["versions"],
            "git_commit": manifest["git_commit"],
            "device": manifest["device"],
        },
    }


def evidence(model: str, results: dict, spread: float | None, controls: dict):
    """What the decision rule looks at."""
    from prednet_jax import statistics

    ladder = []
    matched = None
    for name, result in results.items():
        if name.startswith("gaussian_"):
            scale = float(name.removeprefix("gaussian_"))
            ladder.append((scale, result))
            if scale < 1e-5:
                matched = result
    nulls = [r for name, r in results.items() if name.startswith("threads_")]
    stale = results.get("stale_targets")
    if model == "autoencoder" and stale is not None:
        # With one image a window the switch must change nothing: a null, not a control.
        nulls.append(stale)
    return statistics.Evidence(
        model=model,
        emulated=results.get(EMULATED),
        gpu=results.get("gpu_deterministic"),
        emulated_pilot_sd=spread,
        null=tuple(nulls),
        gaussian_matched=matched,
        gaussian_ladder=tuple(ladder),
        stale=None if model == "autoencoder" else stale,
        stale_applies=model != "autoencoder",
        theory_matched=controls["theory_matched"],
        units_separated=controls["units_separated"],
    )


def comparison(runs: list, control: list) -> dict:
    """How far two arms' runs lie apart, beyond the metric."""
    same = [
        a.manifest["final_params_sha256"] == b.manifest["final_params_sha256"]
        for a, b in zip(runs, control, strict=True)
    ]
    return {
        "treatment_mean": float(metric(runs).mean()),
        "control_mean": float(metric(control).mean()),
        "bitwise_equal": sum(same),
    }


def arm_record(job: Job, runs: list) -> dict:
    """One row of the table of arms."""
    manifest = runs[0].manifest
    seconds = np.concatenate([run.metrics["seconds"][1:] for run in runs])
    return {
        "model": job.model,
        "name": job.arm.name,
        "meaning": job.arm.meaning,
        "command": job.shown(),
        "status": "run",
        "noise": manifest["flags"]["noise"],
        "threads": manifest["device"]["threads"],
        "measured_parallelism": manifest["measured_parallelism"],
        "seconds_per_update": float(np.median(seconds)),
    }


def positive_controls() -> dict:
    """Escape-time theory and the separation of identical units, run here."""
    from prednet_jax import noise, saddles

    print("positive controls: escape times, identical units", flush=True)

    def noisy(gradient, granularity: str):
        return noise.inject(gradient, noise.ReductionOrder(granularity=granularity))

    return saddles.positive_controls(noisy).as_dict()


def publish(root: Path, verdict: dict) -> None:
    """Writes the verdict and the report, prints the table."""
    from prednet_jax import records, report

    records.write_json(root / "verdict.json", verdict)
    page = report.build(root)
    print()
    print(report.text_table(verdict))
    minutes = verdict["seconds"] / 60
    print(f"\n{minutes:.1f} minutes; report: {page}")


if __name__ == "__main__":
    common.run(main)
