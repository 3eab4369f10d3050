"""Studies beside the comparison: long trainings, known saddles, curvature.

The long trainings (parts B to I of docs/study):
    parts -> seed_trainings (with dose, endpoints) -> seed_records, one JSON a seed
    -> judgement (contrasts, the answer) -> study_tables, study_figures
Part A: symmetric_start (weights) -> symmetric (runs.csv, and what it shows)
again              the study made again, and what `make compare` repeats of it
saddle_escape      escape from functions with known saddles
curvature_probe    curvature along a training
calibration        how much reductions vary from run to run on a device
"""
