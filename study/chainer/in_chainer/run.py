"""One training by the loop of the published script; writes one JSON record.

The loop keeps one NumPy buffer for the input and one for the target, fills them frame
by frame, adds the losses of a window up and calls backward at its end. Flags change one
thing in it.

Called by study/chainer/trainings.py with the Python of a Chainer environment.
"""

import argparse
import hashlib
import json
import os
import platform

import chainer
import network
import numpy as np
from chainer import functions


def arguments():
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default, about in (
        ("length", None, "frames to use; all unless given"),
        ("seed", 0, "of the initial weights"),
        ("window", 10, "frames between updates"),
    ):
        parser.add_argument("--" + name, type=int, default=default, help=about)
    for name, default, about in (
        ("frames", None, "npz with uint8 [T, H, W, C]"),
        ("output", None, "JSON record to write"),
        ("channels", "3,6,12", "of the layers"),
        ("initial", None, "npz of initial weights, instead of a seed"),
        ("weights", None, "npz for the final weights"),
    ):
        parser.add_argument("--" + name, default=default, help=about)
    for name, choices in (
        ("input", ("shared", "copied")),
        ("target", ("shared", "copied")),
        ("loss", ("installed", "difference_kept")),
    ):
        parser.add_argument("--" + name, default=choices[0], choices=choices)
    parser.add_argument("--remake", action="store_true", help="new parameters, state")
    parser.add_argument("--static", action="store_true", help="repeat the first frame")
    return parser.parse_args()


def main():
    """Trains and writes the record."""
    args = arguments()
    with np.load(args.frames) as file:
        frames = file["frames"][: args.length]
    if args.static:
        frames = np.repeat(frames[:1], len(frames), axis=0)
    channels = [int(word) for word in args.channels.split(",")]
    net = network.PredNet(channels, *frames.shape[1:3])
    if args.initial:
        with np.load(args.initial) as file:
            network.set_weights(net, dict(file))
    else:
        network.set_weights(net, network.initial_weights(net, args.seed))
    initial = digest(network.weights(net))
    losses = train(net, frames, args)
    if args.weights:
        np.savez(args.weights, **network.weights(net))
    record = {
        "seed": args.seed,
        "window": args.window,
        "channels": channels,
        "height": frames.shape[1],
        "width": frames.shape[2],
        "initial_sha256": initial,
        "frames_sha256": digest({"frames": frames}),
        "final_sha256": digest(network.weights(net)),
        # A float32 as float: exact, so that records can be compared by bits.
        "losses": [float(loss) for loss in losses],
        "chainer": chainer.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    temporary = args.output + ".tmp"
    with open(temporary, "w") as file:
        json.dump(record, file)
    os.replace(temporary, args.output)


def difference_kept(prediction, target):
    """Computes the mean squared error, keeping x0 - x1 of its forward pass.

    It computes as Chainer 7.8.1 does, and keeps the array that releases before 3.0.0rc1
    kept.
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


def train(network, frames, options):
    """Returns the losses `[T - 1]` of a training on one stream of frames, float32.

    Each loss is against the true target. The first window has one loss less, unless the
    window is 1. An input or target that is `copied` is a new array for each frame, as
    after a transfer to a GPU; one that is `shared` is always the same buffer, as
    published. With `remake`, after each update every parameter and every carried state
    gets a new array of the same value, as when the model is moved to the CPU and back.
    `frames` are uint8 `[T, H, W, C]`.
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
    losses, total = [], 0
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
            if options.remake:
                variables = list(network.params()) + network.P + network.h + network.c
                for variable in variables:
                    variable.data = variable.data.copy()
        x_buffer[0] = y_buffer[0]
    return np.array(losses, np.float32)


def digest(arrays):
    """Hashes named arrays by SHA-256: names, shapes and bytes, ordered by name."""
    sha = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        sha.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


if __name__ == "__main__":
    main()
