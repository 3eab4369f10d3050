"""Lists what each primitive of JAX does: it rounds, sums, runs a program, or neither.

Noises on results act on the primitives in `ROUNDING`. `CUTS` has the sums whose order
`ReductionOrder` draws, with the function that cuts each (see `order.partials`).
`LEFT_ALONE` has the other floating-point arithmetic, and the reason why no order is
drawn. A primitive in none of these tables, nor in `EXACT`, is unknown to noise, and
`coverage` lists it.

Copies, comparisons, maxima and negation are exact, and are perturbed only where a spec
names them. A few conversions round, depending on their types (`rounds_to`): no noise
acts on them by default, and `coverage` lists them.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from jax import numpy as jnp

from prednet_jax.noise import compat
from prednet_jax.noise.order import collectives, partials, products, scatters
from prednet_jax.noise.order.partials import Cut, LeftAlone
from prednet_jax.noise.rounding import whole
from prednet_jax.noise.rules import control_flow, registry
from prednet_jax.noise.types import names_in

# The primitives whose operands `ReducedPrecision` rounds.
MATRIX_PRODUCTS = names_in("dot_general conv_general_dilated ragged_dot_general")

CUTS: Mapping[str, Callable[..., Cut | LeftAlone]] = MappingProxyType(
    {
        "dot_general": products.cut_dot,
        "conv_general_dilated": products.cut_conv,
        "reduce_sum": partials.cut_sum,
        "reduce_window_sum": partials.cut_window,
        "cumsum": partials.cut_cumsum,
        "scatter-add": scatters.cut_scatter_add,
        "select_and_scatter_add": scatters.cut_select_and_scatter_add,
        "psum": collectives.cut_collective,
        "psum_invariant": collectives.cut_collective,
        "reduce_scatter": collectives.cut_collective,
        # For whole chains of them; see `plan._add_any_chains`.
        "add_any": lambda spec, params, *terms: partials.cut_add_any(terms),
    }
)

# Sums inside a routine of a library, whose operands `Elementwise.routines` perturbs.
ROUTINES = names_in(
    "cholesky cholesky_update coo_spmm coo_spmv csr_spmm csr_spmv eig eigh "
    "ffi_call fft geqp3 geqrf hessenberg householder_product io_callback lu ormqr "
    "pure_callback qr ragged_dot_general schur spsolve svd symmetric_product "
    "triangular_solve tridiagonal tridiagonal_solve"
)
# Kernels, and programs that noise does not enter; operands as for `ROUTINES`.
KERNELS = names_in(
    "pallas_call core_map mpmd_map call_exported cudnn_fusion scaled_dot "
    "scaled_matmul scaled_matmul_wrapper dot_product_attention_fwd "
    "dot_product_attention_fwd_wrapper dot_product_attention_bwd "
    "dot_product_attention_bwd_wrapper dot_product_attention_fp8_fwd "
    "dot_product_attention_fp8_fwd_wrapper dot_product_attention_fp8_bwd "
    "dot_product_attention_fp8_bwd_wrapper"
)

# Code that was written for the types that it is given, and is not seen.
OPAQUE = KERNELS | {"pure_callback", "io_callback", "ffi_call"}

_NOT_A_SUM = "a reduction, but not a sum"
_BY_A_FUNCTION = "a reduction by a function of the user's"
_IN_PLACE = "accumulation into a mutable array, in the program's order"
_OF_DEVICES = "a sum over devices in a form whose order is not drawn"
LEFT_ALONE: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(ROUTINES, "sums inside a library routine, out of reach"),
        **dict.fromkeys(KERNELS, "a kernel of its own, which noise does not enter"),
        "reduce_prod": _NOT_A_SUM,
        "cumprod": _NOT_A_SUM,
        "cumlogsumexp": _NOT_A_SUM,
        "scatter-mul": _NOT_A_SUM,
        "scatter_mul": _NOT_A_SUM,
        "scatter-sub": "differences; adding the negative has an order",
        "reduce": _BY_A_FUNCTION,
        "reduce_window": _BY_A_FUNCTION,
        "select_and_scatter": _BY_A_FUNCTION,
        "ragged_dot_general": "groups of unknown length",
        "addupdate": _IN_PLACE,
        "accum_grad_in_ref": _IN_PLACE,
        **dict.fromkeys(
            names_in(
                "preduced psum_start psum_done psum_invariant_start unreduced_psum "
                "unreduced_psum_start reduce_scatter_start reduce_scatter_done "
                "unreduced_reduce_scatter unreduced_reduce_scatter_start"
            ),
            _OF_DEVICES,
        ),
    }
)

ROUNDING = names_in(
    "add sub mul div pow integer_pow square sqrt rsqrt cbrt exp exp2 expm1 log "
    "log1p logistic tanh sinh cosh asinh acosh atanh sin cos tan asin acos atan "
    "atan2 erf erfc erf_inv lgamma digamma polygamma igamma igammac zeta "
    "bessel_i0e bessel_i1e regularized_incomplete_beta add_any dot_general "
    "conv_general_dilated ragged_dot_general reduce_sum reduce_prod cumsum cumprod "
    "cumlogsumexp reduce_window_sum scatter-add scatter-sub scatter-mul "
    "select_and_scatter_add addupdate reciprocal "
    "psum psum_invariant reduce_scatter fft cholesky cholesky_update lu qr ormqr "
    "geqrf geqp3 householder_product eig eigh svd schur hessenberg tridiagonal "
    "symmetric_product triangular_solve tridiagonal_solve spsolve random_gamma "
    "igamma_grad_a random_gamma_grad log2 one_minus_square"
)

# The results of these are hardly ever whole numbers, and those of `INTEGRAL` always.
FRACTIONS = ROUNDING - {"add", "add_any", "sub", "mul", "square"} - whole.PRIMITIVES
INTEGRAL = names_in("ceil floor round sign")

# The results of these have no rounding error: copies, choices, comparisons, bits,
# integers, tokens, devices. (Drawn random numbers have no exact value.)
EXACT = names_in(
    "abs after_all all_gather all_gather_done all_gather_invariant "
    "all_gather_reduced all_gather_reduced_start all_gather_start all_to_all "
    "all_to_all_done all_to_all_start and approx_top_k argmax argmin axis_index "
    "bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_transpose bcsr_extract "
    "bcsr_fromdense bitcast_convert_type broadcast_in_dim broadcast_to ceil check "
    "clamp clz complex concatenate conj convert_element_type coo_fromdense copy "
    "create_linear create_token csr_fromdense cummax cummin dce_sink "
    "debug_callback debug_print device_put dim_as_value dimension_size "
    "dynamic_slice dynamic_update_slice empty empty2 empty_ref eq eq_to floor "
    "free_ref freeze from_edtype gather ge get gt imag inspect_sharding iota "
    "iota_2x32_shape is_finite layout_constraint le le_to lt lt_to "
    "lu_pivots_to_permutation max min mulhi multiple_of name ne neg new_ref "
    "nextafter not optimization_barrier or pad pbroadcast pbroadcast_done "
    "pbroadcast_start philox2x32 philox4x32 pin platform_index pmax pmin "
    "population_count ppermute ppermute_done ppermute_start precv psend pvary "
    "ragged_all_to_all random_bits random_clone random_fold_in random_seed "
    "random_split random_unwrap random_wrap real rem reduce_and reduce_max "
    "reduce_min reduce_or reduce_precision reduce_window_max reduce_window_min "
    "reduce_xor reduced_vary_cast_p reshape reshard rev rng_bit_generator "
    "rng_uniform round scatter scatter-max scatter-min select_and_gather_add "
    "select_n shape_assertion sharding_constraint shift_left "
    "shift_right_arithmetic shift_right_logical sign slice sort split squeeze "
    "stack stage stop_gradient swap threefry2x32 threefry4x32 tie tile to_edtype "
    "top_k transpose unpin unreachable unstack vary_unreduced_cast_p "
    "with_memory_space_constraint xla_metadata_value xor"
)

# Primitives whose parameters include a jaxpr that is not a program to run, but the
# combining function of a reduction or a scatter.
COMBINERS = frozenset({"sort", "scatter", "scatter-min", "scatter-max"})

for _name in sorted(ROUNDING | CUTS.keys() | LEFT_ALONE.keys() | COMBINERS):
    registry.RULES[_name] = registry.FirstOrder(
        rounds=_name in ROUNDING,
        cut=CUTS.get(_name),
        left_alone=LEFT_ALONE.get(_name, ""),
    )
assert not registry.RULES.keys() & control_flow.HIGHER_ORDER
registry.RULES.update(control_flow.HIGHER_ORDER)


def known() -> frozenset[str]:
    """Returns the names of all primitives that JAX has or that have a rule."""
    return frozenset(registry.RULES) | compat.primitive_names()


def rounds_to(equation: compat.Equation) -> str:
    """Returns why an equation of an `EXACT` primitive rounds, or "" if it is exact.

    A conversion rounds if the new type represents fewer numbers than the old one: it
    has fewer bits of mantissa, or fewer than an integer has bits.
    """
    if not (equation.invars and equation.outvars):
        return ""
    old, new = (
        getattr(atoms[0].aval, "dtype", jnp.dtype(bool))
        for atoms in (equation.invars, equation.outvars)
    )
    magnitude = equation.primitive.name in ("abs", "sign")
    if magnitude and jnp.issubdtype(old, jnp.complexfloating):
        return "by the magnitude of a complex number, which rounds"
    combine = equation.params.get("update_jaxpr")
    if equation.primitive.name == "scatter" and getattr(combine, "eqns", ()):
        return _BY_A_FUNCTION
    if equation.primitive.name == "reduce_precision":
        bits = equation.params["mantissa_bits"]
        fewer = bits < jnp.finfo(old).nmant
        return f"a rounding to {bits} bits that the program asks for" if fewer else ""
    if equation.primitive.name == "convert_element_type" and _loses_bits(old, new):
        return f"a conversion from {old} to {new}, which rounds"
    return ""


def _loses_bits(old: jnp.dtype, new: jnp.dtype) -> bool:
    if not jnp.issubdtype(new, jnp.inexact):
        return False
    if jnp.issubdtype(old, jnp.inexact):
        return jnp.finfo(new).nmant < jnp.finfo(old).nmant
    if not jnp.issubdtype(old, jnp.integer):
        return False
    info = jnp.iinfo(old)
    return jnp.finfo(new).nmant + 1 < info.bits - (info.min < 0)
