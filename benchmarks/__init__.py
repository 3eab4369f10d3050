"""Measurements of speed; `experiments/benchmark.py` runs them by suite.

There is one module per suite (`step`, `conv`, `noise`, `replicas`, `cases`, `backends`,
`foreign`, `tools`), each with `run(...) -> dict` for JSON. `torch_prednet` is the same
network in PyTorch; the script `compare` runs the two in turns.
"""
