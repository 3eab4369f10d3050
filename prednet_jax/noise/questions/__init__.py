"""Answers to questions about noise, for any function: one module per question.

digits       how many decimal digits of a result are significant
tolerance    which tolerance a test should have, and whether a result is within it
explain      what makes two results differ
decisions    which comparisons, argmaxes, roundings flip
recording, first_difference    where two runs first differ

They run a function a few times under noise and do statistics with NumPy alone.
"""
