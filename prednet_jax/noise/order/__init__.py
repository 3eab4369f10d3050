"""Order of sums: profiles choose them, `partials` cuts them, `permutations` adds."""
