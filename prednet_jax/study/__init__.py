"""A comparison of arms: its design, its execution, its judgement.

An arm is a process of its own, since threads and XLA's flags are per process; what the
processes share is on disk. The way of the data: design -> jobs -> runs on disk ->
margin (from a pilot, before the main runs start) -> contrasts -> verdict.
"""

from prednet_jax.study.checks import check
from prednet_jax.study.design import ALWAYS, CONTROL, EMULATED, STALE, Design, Job
from prednet_jax.study.execution import execute, remove
from prednet_jax.study.judgement import Pilot, fix_margin, judge

__all__ = [
    "ALWAYS",
    "CONTROL",
    "EMULATED",
    "STALE",
    "Design",
    "Job",
    "Pilot",
    "check",
    "execute",
    "fix_margin",
    "judge",
    "remove",
]
