"""Studies beside the comparison: long trainings, known saddles, curvature.

The long trainings (parts B to I of study/pages):
    parts -> seed_trainings (with dose, endpoints) -> seed_records, one JSON a seed
    -> judgement (contrasts, the answer) -> tables, figures
Part A: symmetric (weights, runs.csv, and what it shows)
"""
