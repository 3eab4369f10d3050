"""Studies beside the comparison: known saddles, curvature, long trainings."""
