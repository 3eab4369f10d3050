"""Measurements of speed.

`speed` has the suites of `experiments/benchmark.py`: the function of a suite's name
returns a dict for JSON. `gpu_steps` is a part of `experiments/on_gpu.py`;
`compare_costs` and `torch_prednet` are scripts.
"""
