"""The published training in Chainer, analysed: the origin of stale targets.

See README.md in this folder, and study/pages/chainer.md for the findings. They are
about these versions of the authors' scripts: main.py of prednet_in_chainer_py3 at
141d86c, and of prednet_in_pytorch at 93c56d3. CuPy's sums were read at 0689a7fd.
Programs that made some of the records and were removed since are in this repository
at commit 09c1a23.
"""
