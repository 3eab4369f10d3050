"""Studies beside the comparison: known saddles, curvature, long trainings.

saddle_escape*     escape from functions with known saddles
curvature_probe*   curvature along a training
calibration        how much reductions vary from run to run on a device
symmetric_*        PredNet started on a symmetric saddle (part A of docs/study)
parts, follow      the long trainings (parts B to E of docs/study), with dose,
                   endpoints, seed_records and judgement
agreement          of runs made again with the published ones
study_*            tables and figures of docs/study
"""
