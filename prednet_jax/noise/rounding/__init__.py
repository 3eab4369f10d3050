"""Noise on single operations: arrays and random words in, arrays out; no jaxprs."""
