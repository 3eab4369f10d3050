"""Reads the program that a GPU would run, on a machine without a GPU."""
