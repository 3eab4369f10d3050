"""Runs: what is to be run, the store of what was made, and executors.

Each arm runs in a process of its own, since threads and XLA's flags are per process.
The processes exchange data through the disk only. A comparison (`Design`) or a sweep
(`sweeps.Sweep`) gives jobs; those whose runs are not in the store yet (`kept`) are
executed on this machine (`execute`) or on many (`sweeps.execute`).
"""

from prednet_jax.runs.arms import NAMES as NAMES
from prednet_jax.runs.arms import Arm as Arm
from prednet_jax.runs.arms import Role as Role
from prednet_jax.runs.arms import arm as arm
from prednet_jax.runs.arms import names as arm_names
from prednet_jax.runs.design import Design as Design
from prednet_jax.runs.design import check as check
from prednet_jax.runs.executor import Ended as Ended
from prednet_jax.runs.executor import ProcessError as ProcessError
from prednet_jax.runs.executor import clear as clear
from prednet_jax.runs.executor import execute as execute
from prednet_jax.runs.executor import follow as follow
from prednet_jax.runs.jobs import Job as Job
from prednet_jax.runs.jobs import kept as kept
from prednet_jax.runs.jobs import said as said
