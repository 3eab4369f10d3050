"""The published training in Chainer, analysed: the origin of stale targets.

See README.md in this folder, and study/pages/chainer.md for the findings.
"""
