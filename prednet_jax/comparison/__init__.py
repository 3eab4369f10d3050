"""A comparison of arms: its design, its execution, its judgement.

An arm is a process of its own, since threads and XLA's flags are per process; what the
processes share is on disk. The way of the data: design -> jobs -> runs on disk ->
losses by seed and noise draw -> contrasts -> verdict.
"""

from prednet_jax.comparison.arms import Arm, Role, arm
from prednet_jax.comparison.checks import check
from prednet_jax.comparison.design import Design, Job
from prednet_jax.comparison.execution import clear, execute
from prednet_jax.comparison.judgement import judge

__all__ = [
    "Arm",
    "Design",
    "Job",
    "Role",
    "arm",
    "check",
    "clear",
    "execute",
    "judge",
]
