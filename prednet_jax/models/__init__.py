"""PredNet in its published variants, and the parameters of every network."""
