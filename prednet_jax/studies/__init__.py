"""Studies of trainings and saddles: what is measured, apart from how it is run."""
