"""Answers to questions about noise, for any function: one module per question."""
