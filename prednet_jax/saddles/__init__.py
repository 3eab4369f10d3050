"""Functions with known saddles, and runs that leave them.

Four modules are imported by name: `escape_theory` computes how many updates noise
saves, `measured_escapes` runs the functions and makes a table, `symmetric` trains
PredNet from an exact saddle, and `curvature_probe` measures the curvature along a
training.
"""

from prednet_jax.saddles.dynamics import Escape as Escape
from prednet_jax.saddles.dynamics import Rule as Rule
from prednet_jax.saddles.dynamics import adam as adam
from prednet_jax.saddles.dynamics import escape_runs as escape_runs
from prednet_jax.saddles.dynamics import gradient_descent as gradient_descent
from prednet_jax.saddles.dynamics import heavy_ball as heavy_ball
from prednet_jax.saddles.dynamics import rotated_gradient as rotated_gradient
from prednet_jax.saddles.functions import CATALOGUE as CATALOGUE
from prednet_jax.saddles.functions import SaddleFunction as SaddleFunction
from prednet_jax.saddles.functions import identical_units as identical_units
from prednet_jax.saddles.functions import octopus as octopus
from prednet_jax.saddles.functions import octopus_function as octopus_function
from prednet_jax.saddles.functions import quadratic_quartic as quadratic_quartic
