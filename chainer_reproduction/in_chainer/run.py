"""One training in Chainer; writes one JSON record.

Called by chainer_reproduction/runs.py with the Python of a Chainer environment, one
process per run.
"""

import argparse
import contextlib
import json
import os
import platform
import sys
import time
import warnings

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
    warnings.simplefilter("ignore")
    args = arguments()
    import chainer
    import network
    import numpy as np
    import training

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
    initial = training.digest(network.weights(net))
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
        losses = training.train(net, frames, args, keep)
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
        "frames_sha256": training.digest({"frames": frames}),
        "final_sha256": training.digest(network.weights(net)),
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


@contextlib.contextmanager
def watch_nothing():
    """Watches nothing."""
    yield []


if __name__ == "__main__":
    sys.exit(main())
