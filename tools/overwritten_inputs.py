"""Finds arrays that a graph keeps for its backward pass and someone overwrites before.

Chainer and PyTorch keep inputs of operations and read them again in the backward pass.
An array that shares its memory with a NumPy buffer can be overwritten in between:
nothing notices, every loss is right, and every gradient is wrong. (PyTorch's version
counters see writes through PyTorch, not through NumPy.) Here what is kept is hashed in
the forward pass and again in the backward pass.

    from overwritten_inputs import watch_chainer      # or watch_torch

    with watch_chainer() as found:
        train()
    print(report(found))

    python overwritten_inputs.py chainer     # the mistake and a correct loop; or torch

One file, to be copied anywhere: it needs NumPy, and Chainer (3.0 or newer) or PyTorch
where they are watched; Python 3.8 or newer. Every kept array is read twice more, so
watch a few updates, not a whole training. Arrays on other devices are left out.
"""

import contextlib
import hashlib
import os
import sys
import traceback
import weakref
from collections import Counter
from typing import NamedTuple

import numpy as np


class Finding(NamedTuple):
    """An array that was overwritten between the passes.

    Attributes:
        operation: what kept it, such as `MeanSquaredError`.
        position: which input of the operation; -1 where the library does not say.
        shape: of the array.
        where: `file:line` of the call that made the graph keep it.
    """

    operation: str
    position: int
    shape: tuple
    where: str


class OverwrittenError(RuntimeError):
    """An array that a graph kept was overwritten before its backward pass."""


def fingerprint(array):
    """Hash of the bytes of a NumPy array, whatever its layout."""
    data = np.ascontiguousarray(array)
    return hashlib.blake2b(data.view(np.uint8).reshape(-1), digest_size=16).digest()


class Ledger:
    """Hashes of kept arrays, and what was found to have changed.

    Args:
        stop: raise `OverwrittenError` at the first finding, inside the backward pass.
    """

    def __init__(self, stop=False):
        self.stop = stop
        self.found = []

    def keep(self, array):
        """What `compare` needs later: the array's hash and where it was kept."""
        return fingerprint(array), _caller()

    def compare(self, entry, array, operation, position=-1):
        """Adds a finding if `array` has changed since `entry = keep(array)`."""
        digest, where = entry
        if fingerprint(array) == digest:
            return
        finding = Finding(operation, position, tuple(array.shape), where)
        self.found.append(finding)
        if self.stop:
            raise OverwrittenError(_sentence(finding))


@contextlib.contextmanager
def watch_chainer(stop=False):
    """Watches every Chainer function called inside; yields the list of findings.

    Args:
        stop: raise `OverwrittenError` at the first finding.
    """
    import chainer

    ledger = Ledger(stop)
    kept = weakref.WeakKeyDictionary()

    class Hook(chainer.FunctionHook):
        name = "overwritten_inputs"

        def forward_postprocess(self, function, inputs):
            # Chainer has no public name for what a function asked to retain.
            indexes = function._input_indexes_to_retain or ()
            kept[function] = {
                i: ledger.keep(inputs[i])
                for i in indexes
                if isinstance(inputs[i], np.ndarray)
            }

        def backward_preprocess(self, function, inputs, gradients):
            for i, entry in kept.pop(function, {}).items():
                ledger.compare(entry, inputs[i], function.label, i)

    with Hook():
        yield ledger.found


@contextlib.contextmanager
def watch_torch(stop=False):
    """Watches every tensor saved for backward inside; yields the list of findings.

    The backward pass may lie outside: it is watched too.

    Args:
        stop: raise `OverwrittenError` at the first finding.
    """
    import torch

    ledger = Ledger(stop)

    def pack(tensor):
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return tensor, None
        # Not a copy: the very memory is looked at again.
        return tensor, ledger.keep(_bytes(tensor))

    def unpack(packed):
        tensor, entry = packed
        if entry is not None:
            ledger.compare(entry, _bytes(tensor), "saved tensor")
        return tensor

    def _bytes(tensor):
        plain = tensor.detach().resolve_conj().resolve_neg()
        if plain.dtype == torch.bfloat16:
            plain = plain.view(torch.int16)
        return plain.numpy()

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield ledger.found


def report(found):
    """The findings in words, equal ones counted."""
    if not found:
        return "no kept array was overwritten"
    return "\n".join(
        f"{_sentence(finding)} ({times} times)"
        for finding, times in Counter(found).items()
    )


def _sentence(finding):
    place = "" if finding.position < 0 else f" input {finding.position}"
    return (
        f"{finding.operation}{place} of shape {finding.shape}, kept at "
        f"{finding.where}, was overwritten before backward"
    )


def _caller():
    """`file:line` of the innermost frame that is neither here nor in a library."""
    here = os.path.abspath(__file__)
    frames = traceback.extract_stack()
    for frame in reversed(frames):
        path = os.path.abspath(frame.filename)
        if "site-packages" not in path and path != here:
            return f"{os.path.basename(path)}:{frame.lineno}"
    # Called from this very file: its demonstration.
    for frame in reversed(frames):
        if frame.name.startswith("_demonstration"):
            return f"{os.path.basename(here)}:{frame.lineno}"
    return "unknown"


def _demonstration_chainer(copied):
    """Three losses against one target buffer, then backward."""
    import chainer
    from chainer import functions

    weight = chainer.Parameter(np.ones((1, 4), np.float32))
    buffer = np.empty((1, 4), np.float32)
    total = 0
    for step in range(3):
        buffer[...] = step
        target = buffer.copy() if copied else buffer
        total += functions.mean_squared_error(weight, chainer.Variable(target))
    total.backward()
    return weight.grad


def _demonstration_torch(copied):
    """The same with tensors over the buffer's memory."""
    import torch

    weight = torch.ones((1, 4), requires_grad=True)
    buffer = np.empty((1, 4), np.float32)
    total = 0
    for step in range(3):
        buffer[...] = step
        target = torch.from_numpy(buffer.copy() if copied else buffer)
        total = total + torch.nn.functional.mse_loss(weight, target)
    total.backward()
    return weight.grad


def main(arguments):
    """Shows the mistake and a correct loop; the exit status."""
    shown = {
        "chainer": (watch_chainer, _demonstration_chainer),
        "torch": (watch_torch, _demonstration_torch),
    }
    if len(arguments) != 1 or arguments[0] not in shown:
        print("usage: overwritten_inputs.py {chainer|torch}", file=sys.stderr)
        return 2
    watch, demonstration = shown[arguments[0]]
    for title, copied in (("one buffer, overwritten", False), ("copied", True)):
        with watch() as found:
            gradient = demonstration(copied)
        print(f"{title}: gradient {float(gradient[0, 0])}")
        print(report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
