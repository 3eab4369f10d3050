"""Studies: questions put to the networks, each by a module of its own."""
