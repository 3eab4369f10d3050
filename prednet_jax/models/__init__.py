"""The networks: PredNet in its two published variants, and the autoencoder."""
