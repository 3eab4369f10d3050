"""Settings, updates, the loop over them, run directories, checkpoints, and scores.

A run of `experiments/train.py` goes through these modules in turn: `settings` (what its
flags mean), `recipe` (the optimizer and the trainer), `train_seeds`, `run_recorder`,
`loop`, `trainer`, and `truncated` (the gradient and the update). `calibration` measures
how much the sums of a device vary.
"""
