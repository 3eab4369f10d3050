"""The published training in Chainer, taken apart: where stale targets come from.

See README.md in this folder, and docs/chainer.md for what was found.
"""
