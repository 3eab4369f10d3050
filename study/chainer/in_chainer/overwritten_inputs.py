"""Finds arrays that a graph keeps for its backward pass and someone overwrites before.

Chainer and PyTorch keep inputs of operations and read them again in the backward pass.
An array that shares its memory with a NumPy buffer can be overwritten in between, which
PyTorch's version counters do not see: every loss is right, and every gradient wrong.
This module hashes kept arrays in the forward pass and again in the backward pass.

    from overwritten_inputs import report, watch_chainer      # or watch_torch

    with watch_chainer() as found:
        train()
    print(report(found))

One file, to be copied anywhere: it needs NumPy, and Chainer (3.0 or newer) or PyTorch
where they are watched; Python 3.8 or newer. Every kept array is read twice more, so
watch a few updates, not a whole training. Arrays on other devices are left out.
"""

import contextlib
import hashlib
import os
import traceback
import weakref
from collections import Counter
from typing import NamedTuple

import numpy as np


class Finding(NamedTuple):
    """An array that was overwritten between the passes.

    The fields are the operation that kept it, such as `MeanSquaredError`; the position
    among its inputs, or -1 if unknown; and `where` it was kept, as `file:line`.
    """

    operation: str
    position: int
    shape: tuple
    where: str


def fingerprint(array):
    """Hashes the bytes of a NumPy array of any layout."""
    return hashlib.sha256(array.tobytes()).digest()


def keep(array):
    """Returns the data that `compare` needs: an array's hash and where it was kept."""
    return fingerprint(array), _caller()


def compare(found, entry, array, operation, position=-1):
    """Adds a finding if `array` has changed since `entry = keep(array)`."""
    digest, where = entry
    if fingerprint(array) != digest:
        found.append(Finding(operation, position, tuple(array.shape), where))


@contextlib.contextmanager
def watch_chainer():
    """Watches every Chainer function called inside; yields the list of findings."""
    import chainer

    found = []
    kept = weakref.WeakKeyDictionary()

    class Hook(chainer.FunctionHook):
        name = "overwritten_inputs"

        def forward_postprocess(self, function, inputs):
            # Chainer has no public name for the arrays that a function asked to retain.
            indexes = function._input_indexes_to_retain or ()
            kept[function] = {
                i: keep(inputs[i]) for i in indexes if isinstance(inputs[i], np.ndarray)
            }

        def backward_preprocess(self, function, inputs, gradients):
            for i, entry in kept.pop(function, {}).items():
                compare(found, entry, inputs[i], function.label, i)

    with Hook():
        yield found


@contextlib.contextmanager
def watch_torch():
    """Watches every tensor saved for backward inside; yields the list of findings.

    The backward pass may lie outside the block: it is watched too.
    """
    import torch

    found = []

    def pack(tensor):
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return tensor, None
        # This is not a copy: the same memory is read again.
        return tensor, keep(_bytes(tensor))

    def unpack(packed):
        tensor, entry = packed
        if entry is not None:
            compare(found, entry, _bytes(tensor), "saved tensor")
        return tensor

    def _bytes(tensor):
        plain = tensor.detach().resolve_conj().resolve_neg()
        if plain.dtype == torch.bfloat16:
            plain = plain.view(torch.int16)
        return plain.numpy()

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield found


def report(found):
    """Describes the findings in words; equal ones are counted."""
    lines = []
    for (operation, position, shape, where), times in Counter(found).items():
        place = "" if position < 0 else f" input {position}"
        lines.append(
            f"{operation}{place} of shape {shape}, kept at {where}, was overwritten "
            f"before backward ({times} times)"
        )
    return "\n".join(lines) or "no kept array was overwritten"


def _caller():
    """Returns `file:line` of the innermost frame outside this file and libraries."""
    here = os.path.abspath(__file__)
    for frame in reversed(traceback.extract_stack()):
        path = os.path.abspath(frame.filename)
        if "site-packages" not in path and path != here:
            return f"{os.path.basename(path)}:{frame.lineno}"
    return "unknown"
