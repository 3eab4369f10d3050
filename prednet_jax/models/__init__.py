"""The networks: PredNet in both published forms, and the control autoencoder."""
