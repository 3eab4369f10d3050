"""The published training in Chainer, taken apart: where stale targets come from.

See README.md in this folder, and study/pages/chainer.md for what was found.
"""
