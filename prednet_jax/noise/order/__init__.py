"""Orders sums: profiles choose them, `partials` cuts and `permutations` adds them."""
