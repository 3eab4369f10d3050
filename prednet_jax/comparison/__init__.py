"""Comparisons of arms (design, execution, judgement), and sweeps over many runs.

Each arm runs in a process of its own, since threads and XLA's flags are per process.
The processes exchange data through the disk only. The data flow is: design -> jobs ->
runs on disk -> losses by seed and noise draw -> contrasts -> verdict. A sweep shares
the steps up to the runs, on this machine (`execute`) or on many (`on_ray.execute`), and
ends in a table.
"""

from prednet_jax.comparison.arms import NAMES, Arm, Role, arm
from prednet_jax.comparison.checks import check
from prednet_jax.comparison.design import Design
from prednet_jax.comparison.execution import Ended, ProcessError, clear, execute
from prednet_jax.comparison.jobs import Job
from prednet_jax.comparison.judgement import judge
from prednet_jax.comparison.receipts import kept, said

__all__ = [
    "NAMES",
    "Arm",
    "Design",
    "Ended",
    "Job",
    "ProcessError",
    "Role",
    "arm",
    "check",
    "clear",
    "execute",
    "judge",
    "kept",
    "said",
]
