"""One training by the loop of the published script; writes one JSON record.

The loop keeps one NumPy buffer for the input and one for the target, fills them frame
by frame, adds the losses of a window up and calls backward at its end. Flags change one
thing in it.

Called by chainer_reproduction/runs.py with the Python of a Chainer environment, one
process per run.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import sys
import time

import chainer
import network
import numpy as np
from chainer import functions

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", required=True, help="npz with uint8 [T, H, W, C]")
    parser.add_argument("--output", required=True, help="JSON record to write")
    parser.add_argument("--length", type=int, help="frames to use; all unless given")
    parser.add_argument("--channels", default="3,6,12")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    parser.add_argument("--initial", help="npz of initial weights, instead of a seed")
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--input", default="shared", choices=("shared", "copied"))
    parser.add_argument("--target", default="shared", choices=("shared", "copied"))
    losses = ("installed", "difference_kept")
    parser.add_argument("--loss", default="installed", choices=losses)
    parser.add_argument("--remake", action="store_true", help="new parameters, state")
    parser.add_argument("--static", action="store_true", help="repeat the first frame")
    parser.add_argument("--ideep", default="never", help="use_ideep of Chainer")
    parser.add_argument(
        "--watch", action="store_true", help="look for overwritten inputs"
    )
    parser.add_argument("--weights", help="npz for the final weights")
    parser.add_argument("--snapshots", default="", help="updates to save weights after")
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
    wanted = {int(word) for word in args.snapshots.split(",") if word}

    def keep(update):
        if update in wanted:
            stem, suffix = os.path.splitext(args.weights)
            np.savez(f"{stem}.{update}{suffix}", **network.weights(net))

    if args.weights:
        os.makedirs(os.path.dirname(os.path.abspath(args.weights)), exist_ok=True)
    keep(0)
    watch = watch_nothing
    if args.watch:
        sys.path.insert(0, TOOLS)
        from overwritten_inputs import watch_chainer as watch
    started = time.time()
    with chainer.using_config("use_ideep", args.ideep), watch() as found:
        losses = train(net, frames, args, keep)
    seconds = time.time() - started
    if args.weights:
        np.savez(args.weights, **network.weights(net))
    overwritten = {}
    for finding in found:
        name = f"{finding.operation} input {finding.position}"
        overwritten[name] = overwritten.get(name, 0) + 1
    record = {
        "seed": args.seed,
        "window": args.window,
        "channels": channels,
        "height": frames.shape[1],
        "width": frames.shape[2],
        "ideep": args.ideep,
        "initial_sha256": initial,
        "frames_sha256": digest({"frames": frames}),
        "final_sha256": digest(network.weights(net)),
        # A float32 as float: exact, so that records can be compared by bits.
        "losses": [float(loss) for loss in losses],
        "overwritten": overwritten,
        "seconds": round(seconds, 2),
        "chainer": chainer.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
    }
    temporary = args.output + ".tmp"
    with open(temporary, "w") as file:
        json.dump(record, file)
    os.replace(temporary, args.output)


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


@contextlib.contextmanager
def watch_nothing():
    """Watches nothing."""
    yield []


if __name__ == "__main__":
    sys.exit(main())
