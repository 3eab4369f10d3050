"""Runs: their design, the store of finished runs, and executors.

Each arm (treatment) runs in a separate process, since threads and XLA's flags are per
process. The processes exchange data through the disk only. A comparison (`Design`) or a
sweep (`sweeps.Sweep`) gives jobs; those whose runs are not in the store yet
(`split_finished`) are executed on this machine (`execute`) or on many
(`sweeps.execute`). `session`, `budget` and `shortened` run a comparison within its
time, and `comparison` judges it; they are imported by name.
"""

from prednet_jax.runs.arms import NAMES, Role, arm
from prednet_jax.runs.arms import names as arm_names
from prednet_jax.runs.design import Design, check
from prednet_jax.runs.executor import Ended, ProcessError, clear, execute
from prednet_jax.runs.jobs import Job, describe_reasons, source, split_finished
