"""The training loop of the published script, and what can be changed in it.

The loop keeps one NumPy buffer for the input and one for the target, fills them frame
by frame, adds the losses of a window up and calls backward at its end. What an arm
changes is a `Job`; the defaults are the published script on a CPU.

Runs in Chainer's own environment (see `network`).
"""

import hashlib

import chainer
import numpy as np
from chainer import functions

TARGETS = ("shared", "copied")
LOSSES = ("installed", "difference_kept")


class Job:
    """One run.

    Attributes:
        window: frames between updates; the first window has one loss less, but for
            window 1.
        input: `shared`: the one buffer, as published; `copied`: a new array a frame.
        target: the same for the target; a transfer to a GPU is such a copy.
        loss: `installed`: Chainer's mean_squared_error; `difference_kept`: the same,
            with x0 - x1 of the forward pass kept, as Chainer had it before 3.0.0rc1.
        remake: after each update every parameter and every carried state gets a new
            array of the same value, as moving the model to the CPU and back does.
        rate: Adam's alpha.
    """

    def __init__(
        self,
        window,
        input="shared",
        target="shared",
        loss="installed",
        remake=False,
        rate=1e-3,
    ):
        for name, value, accepted in (
            ("input", input, TARGETS),
            ("target", target, TARGETS),
            ("loss", loss, LOSSES),
        ):
            if value not in accepted:
                raise ValueError(
                    "{}={!r}: expected one of {}".format(
                        name, value, ", ".join(accepted)
                    )
                )
        if window < 1:
            raise ValueError(f"window={window!r}: expected at least 1")
        self.window, self.input, self.target = window, input, target
        self.loss, self.remake, self.rate = loss, remake, rate


def difference_kept(prediction, target):
    """Mean squared error that keeps x0 - x1 of its forward pass.

    The arithmetic is that of Chainer 7.8.1; what is kept is what releases before
    3.0.0rc1 kept.
    """

    class MeanSquaredError(chainer.FunctionNode):
        def forward_cpu(self, inputs):
            self.difference = inputs[0] - inputs[1]
            flat = self.difference.ravel()
            return (np.array(flat.dot(flat) / flat.size, dtype=flat.dtype),)

        def backward(self, indexes, gradients):
            kept = chainer.Variable(self.difference)
            gradient = functions.broadcast_to(gradients[0], kept.shape)
            gradient = gradient * kept * (2.0 / kept.size)
            return tuple(gradient if index == 0 else -gradient for index in indexes)

    return MeanSquaredError().apply((prediction, target))[0]


def train(network, frames, job, after_update=None):
    """Trains on one stream of frames.

    Args:
        network: a `network.PredNet`.
        frames: uint8 `[T, H, W, C]`.
        job: what is changed.
        after_update: called with the number of the update after each.

    Returns:
        float32 `[T - 1]`: the loss of each frame, against its true target.
    """
    pictures = frames.transpose(0, 3, 1, 2).astype(np.float32)
    pictures /= 255
    measure = (
        functions.mean_squared_error if job.loss == "installed" else difference_kept
    )
    optimizer = chainer.optimizers.Adam(alpha=job.rate)
    optimizer.setup(network)
    network.reset()
    x_buffer, y_buffer = np.empty((2, 1, *pictures.shape[1:]), np.float32)
    x_buffer[0] = pictures[0]
    losses, total, updates = [], 0, 0
    for i in range(1, len(pictures)):
        y_buffer[0] = pictures[i]
        x = x_buffer.copy() if job.input == "copied" else x_buffer
        y = y_buffer.copy() if job.target == "copied" else y_buffer
        loss = measure(network(chainer.Variable(x)), chainer.Variable(y))
        losses.append(loss.data.copy())
        total += loss
        if (i + 1) % job.window == 0:
            network.cleargrads()
            total.backward()
            total.unchain_backward()
            total = 0
            optimizer.update()
            updates += 1
            if job.remake:
                remake(network)
            if after_update is not None:
                after_update(updates)
        x_buffer[0] = y_buffer[0]
    return np.array(losses, np.float32)


def remake(network):
    """Gives every parameter and every carried state a new array of the same value."""
    for variable in list(network.params()) + network.P + network.h + network.c:
        variable.data = variable.data.copy()


def digest(arrays):
    """SHA-256 of named arrays: names, shapes and bytes, in the order of the names."""
    sha = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        sha.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()
