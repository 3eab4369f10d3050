"""The judgement of a comparison: runs on disk -> losses -> contrasts -> verdict."""

from prednet_jax.comparison.judgement import judge

__all__ = ["judge"]
