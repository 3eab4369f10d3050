"""Judges a comparison: its runs on disk -> losses -> contrasts -> verdict."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from prednet_jax import records, statistics
from prednet_jax.records.verdict import ArmRecord, Contrast, Exclusion, Margin, Verdict
from prednet_jax.runs import arms
from prednet_jax.runs.arms import Arm, Role
from prednet_jax.runs.design import Design
from prednet_jax.runs.jobs import Job, verified
from prednet_jax.tasks import Task
from prednet_jax.training import loop

EXCLUSION_RULE = (
    "a seed whose loss is not finite in the averaged updates of either arm is left out "
    "of that contrast, in both arms, and counted; nothing else is left out"
)


@dataclasses.dataclass(frozen=True)
class ArmRuns:
    """The runs of one job, one per seed, in the order of `job.seeds`."""

    job: Job
    runs: tuple[records.Run, ...]

    @property
    def arm(self) -> Arm:
        """Returns the arm of the runs."""
        return self.job.arm

    def metric(self, last: int) -> np.ndarray:
        """Returns each run's mean last-frame loss over `last` updates, `[seeds]`."""
        means = []
        for run in self.runs:
            failed = run.manifest.failure is not None
            losses = run.metrics["last_frame_loss"][-last:]
            means.append(math.nan if failed else losses.mean())
        return np.asarray(means)

    def weights(self, index: int) -> np.ndarray:
        """Returns the final weights of run number `index`, float64 `[n]`."""
        path = self.runs[index].directory / records.WEIGHTS
        return records.vector(records.read_tree(path))

    def final_bits(self) -> np.ndarray:
        """Returns the SHA-256 of each run's final weights, `[seeds]`.

        The text is empty for a run that diverged.
        """
        return np.asarray([run.manifest.final_params_sha256 or "" for run in self.runs])

    def record(self) -> ArmRecord:
        """Returns one row of the table of arms."""
        manifest = self.runs[0].manifest
        device = manifest.device or {}
        # The first update of a process includes compiling, so it is left out.
        seconds = np.concatenate([run.metrics["seconds"][1:] for run in self.runs])
        return ArmRecord(
            model=self.job.model,
            name=self.arm.name,
            meaning=self.arm.meaning,
            command=self.job.command_line,
            status="run",
            noise=manifest.noise,
            threads=device["threads"],
            measured_parallelism=manifest.processor_seconds_per_second,
            seconds_per_update=float(np.median(seconds)),
            gpu=device["kind"] if self.arm.gpu else None,
            role=self.arm.role.value,
            scale=self.arm.scale,
        )


@dataclasses.dataclass(frozen=True)
class JudgedNetwork:
    """One network of a comparison; its runs, the control first, draws in order."""

    design: Design
    task: Task
    runs: list[ArmRuns]

    @functools.cached_property
    def losses(self) -> dict[str, dict[str, list[float]]]:
        """Returns the metric by arm, seed and noise draw, as in verdict.json."""
        last = self.design.metric_updates(self.task)
        by_arm: dict[str, dict[str, list[float]]] = {}
        for of_draw in self.runs:
            seeds = by_arm.setdefault(of_draw.arm.name, {})
            values = of_draw.metric(last).tolist()
            for seed, value in zip(of_draw.job.seeds, values, strict=True):
                seeds.setdefault(str(seed), []).append(value)
        return by_arm

    @functools.cached_property
    def margin(self) -> Margin:
        """Returns the margin of equivalence, from the control."""
        control = arms.CONTROL.name
        return statistics.margin_from_losses(self.losses, control, self.design.margin)

    @property
    def pairs(self) -> dict[tuple[str, str], tuple[ArmRuns, ArmRuns]]:
        """Returns treatment and control of every contrast by name by first draws.

        The deterministic GPU is compared with the default GPU where both were run.
        """
        control, *treatments = (runs for runs in self.runs if runs.job.draw == 0)
        gpu = next((runs for runs in treatments if runs.arm.role is Role.GPU), control)
        return {
            (runs.arm.name, other.arm.name): (runs, other)
            for runs in treatments
            for other in [gpu if runs.arm.role is Role.GPU_DETERMINISTIC else control]
        }

    def contrasts(self) -> list[Contrast]:
        """Returns every arm minus the control, with Holm's correction."""
        results = statistics.contrasts_from_losses(
            self.losses,
            list(self.pairs),
            self.margin.value,
            model=self.task.name,
            metric=self.design.metric_name(self.task),
        )
        rows = []
        for result in results:
            names = str(result.treatment), str(result.control)
            treatment, control = self.pairs[names]
            matched = statistics.pair_by_seed(self.losses, *names)
            kept = [str(seed) in matched.seeds for seed in control.job.seeds]
            same = treatment.final_bits() == control.final_bits()
            rows.append(
                dataclasses.replace(
                    result,
                    bitwise_equal=int(same[kept].sum()),
                    n_excluded=len(matched.excluded),
                    role=treatment.arm.role.value,
                    scale=treatment.arm.scale,
                )
            )
        return rows

    def excluded(self) -> list[Exclusion]:
        """Returns one record for each seed that a contrast leaves out."""
        return [
            Exclusion(
                model=self.task.name,
                treatment=names[0],
                control=names[1],
                seed=seed,
                reason=f"loss not finite in {' and '.join(broken)}",
            )
            for names, (_, runs) in self.pairs.items()
            for seed in runs.job.seeds
            if (broken := [n for n in names if not self._is_finite(n, seed)])
        ]

    def _is_finite(self, name: str, seed: int) -> bool:
        return bool(np.isfinite(self.losses[name][str(seed)]).all())

    def answers(self) -> list[statistics.Answered]:
        """Returns the answer about random orders and a GPU's own noise."""
        by_role = {runs.arm.role: runs.arm.name for runs in self.runs}
        names = arms.TREATMENT.name, arms.CONTROL.name, arms.FIXED_ORDERS
        questions: list[tuple[str, str, str | statistics.Group]] = [names]
        gpu, quiet = by_role.get(Role.GPU), by_role.get(Role.GPU_DETERMINISTIC)
        if gpu and quiet and statistics.comparable(self.losses, gpu, quiet):
            questions.append((gpu, quiet, quiet))
        margin = self.design.margin
        evaluate = functools.partial(
            statistics.evaluate_claim, self.task.name, self.losses, margin=margin
        )
        return [
            evaluate(self.manipulation(noisy, still), treatment=noisy, control=control)
            for noisy, still, control in questions
        ]

    def manipulation(self, noisy: str, quiet: str) -> statistics.Manipulation:
        """Returns how much the first draw of a noise changed the trajectories."""
        treatment, control = (
            next(r for r in self.runs if r.arm.name == name and r.job.draw == 0)
            for name in (noisy, quiet)
        )
        kept = statistics.pair_by_seed(self.losses, noisy, quiet).seeds
        indices = [i for i, s in enumerate(control.job.seeds) if str(s) in kept]
        differ = treatment.final_bits() != control.final_bits()
        return statistics.manipulation(
            differ[indices].tolist(),
            distance_over_travelled(treatment, control, indices),
        )

    def claims(
        self, answers: list[statistics.Answered], study: statistics.Arms | None
    ) -> list[statistics.Claim]:
        """Returns the claims of the comparison, next to those the study published.

        `study` has the losses of the study that the comparison repeats, or is None.
        With one image per update stale targets cannot have an effect.
        """
        orders, *gpus = answers
        claims = [statistics.noise_claim(orders, study)]
        claims += [statistics.noise_claim(a, study, statistics.Kind.GPU) for a in gpus]
        losses, stale, control = self.losses, arms.STALE.name, arms.CONTROL.name
        if self.task.windowed and statistics.comparable(losses, stale, control):
            claim = statistics.stale_claim(
                *(self.task.name, losses, stale, arms.FIXED_ORDERS),
                margin=orders.effect.margin,
                study=study,
            )
            claims.insert(0, claim)
        return claims

    def arms(self) -> list[ArmRecord]:
        """Returns the table of arms; arms that could not run come last."""
        skipped = dict(self.design.skipped)
        return [runs.record() for runs in self.runs if runs.job.draw == 0] + [
            ArmRecord(
                model=self.task.name,
                name=arm.name,
                status=f"skipped: {skipped[arm.name]}",
                role=arm.role.value,
                scale=arm.scale,
            )
            for arm in self.design.arms_of(self.task)
            if arm.name in skipped
        ]


def judge(
    design: Design,
    study: Mapping[str, statistics.Arms] | None = None,
    others: Sequence[statistics.Claim] = (),
) -> Verdict:
    """Returns all contrasts and verdicts of runs on disk.

    `study` has the losses of the published study, by the networks for which it is
    repeated; `others` are claims that do not come from its runs.
    """
    networks = {}
    for task in design.tasks:
        jobs = [job for job in design.runs() if job.task == task]
        networks[task.name] = JudgedNetwork(design, task, read(jobs))
    answers = {name: judged.answers() for name, judged in networks.items()}
    claims = [
        claim
        for name, judged in networks.items()
        for claim in judged.claims(answers[name], (study or {}).get(name))
    ] + list(others)
    contrasts = []
    for name, judged in networks.items():
        of_log = f"log of the {design.metric_name(judged.task)}"
        contrasts += judged.contrasts() + [a.contrast(of_log) for a in answers[name]]
    first = next(iter(networks.values())).runs[0]
    manifest = first.runs[0].manifest
    return Verdict(
        contrasts=tuple(contrasts),
        verdict={
            name: statistics.verdict(answered) for name, answered in answers.items()
        },
        claims=tuple(claims),
        losses={name: judged.losses for name, judged in networks.items()},
        manipulation={
            name: answered[0].check
            for name, answered in answers.items()
            if answered[0].check is not None
        },
        margins={name: judged.margin for name, judged in networks.items()},
        arms=tuple(row for judged in networks.values() for row in judged.arms()),
        excluded=tuple(
            row for judged in networks.values() for row in judged.excluded()
        ),
        design={
            "seeds": list(first.job.seeds),
            "metric": {task.name: design.metric_name(task) for task in design.tasks},
            "last_updates": {t.name: design.metric_updates(t) for t in design.tasks},
            "versions": manifest.versions,
            "git_commit": manifest.git_commit,
            "exclusion_rule": EXCLUSION_RULE,
            "device": manifest.device,
        },
    )


def read(jobs: list[Job]) -> list[ArmRuns]:
    """Returns the runs of jobs of one network.

    Arms with different starts are a FileError.
    """
    runs = [ArmRuns(job, tuple(verified(job, n) for n in job.seeds)) for job in jobs]
    records.check_comparable([run for of_arm in runs for run in of_arm.runs])
    return runs


def distance_over_travelled(
    treatment: ArmRuns, control: ArmRuns, indices: list[int]
) -> list[float]:
    """Returns the distance of final weights, over the distance the control travelled.

    There is one number per run that counts; `indices` are the indices of these runs in
    `job.seeds`.
    """
    ratios = []
    for index in indices:
        seed = control.job.seeds[index]
        start = records.vector(loop.initial_params(control.job.task, seed))
        end = control.weights(index)
        distance = np.linalg.norm(treatment.weights(index) - end)
        ratios.append(float(distance / np.linalg.norm(end - start)))
    return ratios
