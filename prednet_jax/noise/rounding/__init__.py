"""Adds noise to single operations: from arrays and random words, without jaxprs."""
