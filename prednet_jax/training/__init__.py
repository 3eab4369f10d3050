"""Truncated back-propagation, the training loop, checkpoints."""
