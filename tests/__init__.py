"""A package, so that no library's own `tests` is found in its place."""
