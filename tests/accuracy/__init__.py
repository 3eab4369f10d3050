"""How often the tools of `noise` are right; docs/noise/accuracy*.md has the figures."""
