"""The arithmetic of noise: arrays and random words in, arrays out; no jaxprs.

partials, products, sums    how a sum is cut into partial sums
permutations                drawn orders, and sums in them
elementwise, rounding       noise on the result of one operation
monte_carlo, error_free     Monte Carlo arithmetic; the exact error of an operation
random_bits, draws          the generator, and what it gives an array
"""
