"""Everything that measures speed; `experiments/benchmark.py` runs it by suite.

One module per suite (`step`, `conv`, `noise`, `replicas`, `cases`, `backends`), each
with `run(...) -> dict` for JSON. `torch_prednet` is the competitor in PyTorch, and
`compare` (a script) lets the two take turns.
"""
