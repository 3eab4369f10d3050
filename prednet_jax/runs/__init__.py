"""Runs: what is to be run (arms, jobs), the store of what was run, executors."""
