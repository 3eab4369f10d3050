"""The training loop of the published script, and what can be changed in it.

The loop keeps one NumPy buffer for the input and one for the target, fills them frame
by frame, adds the losses of a window up and calls backward at its end.

Runs in Chainer's own environment (see `network`).
"""

import hashlib

import chainer
import numpy as np
from chainer import functions


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


def train(network, frames, options, after_update):
    """Trains on one stream of frames.

    Args:
        network: a `network.PredNet`.
        frames: uint8 `[T, H, W, C]`.
        options: an object with the fields
            window: frames between updates; the first window has one loss less, but for
                window 1.
            input: `shared`: the one buffer, as published; `copied`: a new array for
                each frame.
            target: the same for the target; a transfer to a GPU is such a copy.
            loss: `installed`: Chainer's mean_squared_error; or `difference_kept`.
            remake: after each update every parameter and every carried state gets a new
                array of the same value, as moving the model to the CPU and back does.
        after_update: called with the number of the update after each.

    Returns:
        float32 `[T - 1]`: the loss of each frame, against its true target.
    """
    pictures = frames.transpose(0, 3, 1, 2).astype(np.float32)
    pictures /= 255
    installed = options.loss == "installed"
    measure = functions.mean_squared_error if installed else difference_kept
    optimizer = chainer.optimizers.Adam(alpha=1e-3)
    optimizer.setup(network)
    network.reset()
    x_buffer, y_buffer = np.empty((2, 1, *pictures.shape[1:]), np.float32)
    x_buffer[0] = pictures[0]
    losses, total, updates = [], 0, 0
    for i in range(1, len(pictures)):
        y_buffer[0] = pictures[i]
        x = x_buffer.copy() if options.input == "copied" else x_buffer
        y = y_buffer.copy() if options.target == "copied" else y_buffer
        loss = measure(network(chainer.Variable(x)), chainer.Variable(y))
        losses.append(loss.data.copy())
        total += loss
        if (i + 1) % options.window == 0:
            network.cleargrads()
            total.backward()
            total.unchain_backward()
            total = 0
            optimizer.update()
            updates += 1
            if options.remake:
                variables = list(network.params()) + network.P + network.h + network.c
                for variable in variables:
                    variable.data = variable.data.copy()
            after_update(updates)
        x_buffer[0] = y_buffer[0]
    return np.array(losses, np.float32)


def digest(arrays):
    """SHA-256 of named arrays: names, shapes and bytes, in the order of the names."""
    sha = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        sha.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()
