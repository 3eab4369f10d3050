"""Measurements of speed, and of how often the tools of `noise` are right.

`experiments/benchmark.py` runs them by suite: the function of a suite's name, which
returns a dict for JSON.
"""
