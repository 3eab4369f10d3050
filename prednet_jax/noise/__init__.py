"""Numerical noise, injected into any JAX function."""
