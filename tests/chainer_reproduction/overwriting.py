"""Three losses against one target buffer, then backward: the mistake and its cure.

Run where Chainer or PyTorch is, with tools/ on the path.
"""

import sys

import numpy as np
import overwritten_inputs as detector


def chainer(targets):
    import chainer

    weight = chainer.Parameter(np.ones((1, 4), np.float32))
    losses = [chainer.functions.mean_squared_error(weight, t) for t in targets]
    sum(losses).backward()
    return weight.grad


def torch(targets):
    import torch

    weight = torch.ones((1, 4), requires_grad=True)
    loss = torch.nn.functional.mse_loss
    sum(loss(weight, torch.from_numpy(t)) for t in targets).backward()
    return weight.grad


def targets(copied):
    buffer = np.empty((1, 4), np.float32)
    for step in range(3):
        buffer[...] = step
        yield buffer.copy() if copied else buffer


if __name__ == "__main__":
    library = sys.argv[1]
    for copied in (False, True):
        with getattr(detector, f"watch_{library}")() as found:
            gradient = globals()[library](targets(copied))
        print(float(gradient[0, 0]))
        print(detector.report(found))
