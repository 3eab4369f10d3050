"""A package, so that Python does not find the `tests` of a library instead."""
