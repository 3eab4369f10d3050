"""Studies beside the comparison: escape from known saddles, curvature of a training."""
