"""Answers to questions about noise, for any function: one module per question.

digits       how many decimal digits of a result are significant
tolerance    which tolerance a test should have
closeness    whether a result is within it, and by how many times the noise it is not
explain      what makes two results differ
decisions    which comparisons, argmaxes, roundings flip
effects      how far the noise of each layer moves a result
worst_case   the order of sums, of those tried, that moves a scalar most

They run a function a few times under noise and do statistics with NumPy alone.
"""
