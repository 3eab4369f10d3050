"""Times one training window of a `watanabe` PredNet in PyTorch, written to be fast.

    python torch_prednet.py DEVICE HEIGHT WIDTH WINDOW BATCH REPEATS CHANNELS...

DEVICE is cpu, cuda, cuda-deterministic or cuda-without-cudnn. The suite `step` of
benchmark.py compares itself with this script (--torch_python). It needs a Python with
PyTorch and nothing of this package. study/pages/performance.md describes how the
published model is optimised; it runs eagerly. The last line is one JSON object.
"""

import itertools
import json
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

LAYOUTS = {torch.contiguous_format: "first", torch.channels_last: "last"}


class Level(nn.Module):
    """One level: fused gates, peepholes, and the convolutions A and P."""

    def __init__(self, channels, above, below, height, width):
        """Draws the weights, N(0, 1/fan_in); a missing neighbour has width 0."""
        super().__init__()
        self.gates = nn.Conv2d(3 * channels + above, 4 * channels, 3, padding=1)
        self.predict = nn.Conv2d(channels, channels, 3, padding=1)
        self.up = nn.Conv2d(2 * below, channels, 3, padding=1) if below else None
        self.peephole = nn.Parameter(
            torch.randn(1, 3 * channels, height, width)
            / (channels * height * width) ** 0.5
        )
        for conv in (self.gates, self.predict, self.up):
            if conv is not None:
                fan_in = conv.weight[0].numel()
                nn.init.normal_(conv.weight, std=fan_in**-0.5)
                nn.init.zeros_(conv.bias)


class PredNet(nn.Module):
    """The `watanabe` form: bottom-up errors, then ConvLSTMs from the top down."""

    def __init__(self, channels, height, width):
        """Builds one `Level` for each entry of `channels`."""
        super().__init__()
        padded = [0, *channels, 0]
        self.levels = nn.ModuleList(
            Level(c, padded[i + 2], padded[i], height >> i, width >> i)
            for i, c in enumerate(channels)
        )

    def forward(self, x, state):
        """Takes one frame [1, 3, H, W]; returns the new state."""
        errors = []
        a = x
        for level, (p, _, _) in zip(self.levels, state, strict=True):
            if level.up is not None:
                a = functional.max_pool2d(functional.relu(level.up(errors[-1])), 2)
            errors.append(functional.relu(torch.cat([a - p, p - a], 1)))
        new = [None] * len(state)
        h_above = None
        for i in reversed(range(len(state))):
            level, (_, h, c) = self.levels[i], state[i]
            inputs = [errors[i], h]
            if h_above is not None:
                inputs.insert(1, functional.interpolate(h_above, scale_factor=2))
            pre = level.gates(torch.cat(inputs, 1))
            n = c.shape[1]
            ifo = torch.sigmoid(pre[:, : 3 * n] + level.peephole * c.repeat(1, 3, 1, 1))
            gate_i, gate_f, gate_o = ifo.chunk(3, 1)
            c = gate_f * c + gate_i * torch.tanh(pre[:, 3 * n :])
            h = gate_o * torch.tanh(c)
            p = functional.relu(level.predict(h))
            if i == 0:
                p = p.clamp(max=1.0)
            new[i] = (p, h, c)
            h_above = h
        return new


def train_window(model, optimizer, frames, state):
    """Trains on one window of T + 1 frames [B, 3, H, W]; returns the carried state."""
    loss = 0.0
    for x, target in itertools.pairwise(frames):
        state = model(x, state)
        loss = loss + functional.mse_loss(state[0][0], target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return [tuple(s.detach() for s in level) for level in state], loss


def prepare(layout, height, width, window, batch, *channels, graph=False):
    """Returns a function that trains on one window, and the number of parameters.

    With `graph` the whole step is captured once as a CUDA graph and replayed.
    """
    torch.manual_seed(0)
    model = PredNet(channels, height, width).to(memory_format=layout)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-3, fused=True, capturable=graph
    )

    def images(make, i):
        shape = batch, channels[i], height >> i, width >> i
        return make(shape).to(memory_format=layout)

    frames = [images(torch.rand, 0) for _ in range(window + 1)]
    # P, h and c of each level.
    state = [
        tuple(images(torch.zeros, i) for _ in range(3)) for i in range(len(channels))
    ]

    def advance():
        after, loss = train_window(model, optimizer, frames, state)
        for level, new in zip(state, after, strict=True):
            for old, value in zip(level, new, strict=True):
                old.copy_(value)
        return loss

    parameters = sum(p.numel() for p in model.parameters())
    if not graph:
        return lambda: advance().item(), parameters
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            advance()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = advance()

    def replay():
        captured.replay()
        return loss.item()

    return replay, parameters


def measure(layout, height, width, window, batch, repeats, *channels):
    """Returns median wall and processor seconds of a window, and the parameters."""
    call, parameters = prepare(layout, height, width, window, batch, *channels)
    wall, used = [], []
    for _ in range(repeats + 1):
        start, before = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - start)
        used.append(time.process_time() - before)
    return statistics.median(wall[1:]), statistics.median(used[1:]), parameters


def as_graphs(precision, height, width, window, batch, *channels):
    """Captures the step on a GPU in both layouts of channels.

    `precision` is float32, tf32, or bfloat16 for autocast. Returns a function of a
    number of repeats: the median seconds of a window in the faster layout.
    """
    torch.set_default_device("cuda")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    narrow = torch.autocast(
        "cuda", torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False
    )
    sizes = height, width, window, batch, *channels
    with narrow:
        replays = [prepare(layout, *sizes, graph=True)[0] for layout in LAYOUTS]

    def seconds(repeats):
        def one(replay):
            start = time.perf_counter()
            replay()
            return time.perf_counter() - start

        return min(
            statistics.median([one(replay) for _ in range(repeats + 2)][2:])
            for replay in replays
        )

    return seconds


def main(device, *sizes):
    """Times the windows and prints the JSON line."""
    where, _, how = device.partition("-")
    torch.set_default_device(where)
    torch.backends.cudnn.deterministic = how == "deterministic"
    torch.backends.cudnn.enabled = how != "without-cudnn"
    torch.backends.cudnn.benchmark = not how
    runs = {name: measure(layout, *sizes) for layout, name in LAYOUTS.items()}
    faster = min(runs.values())
    report = {
        "seconds_per_window": faster[0],
        "processor_seconds_per_window": faster[1],
        "channels": {name: wall for name, (wall, _, _) in runs.items()},
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "parameters": faster[2],
        "torch": torch.__version__,
        "device": device,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
