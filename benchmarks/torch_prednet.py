"""Times one training window of a `watanabe` PredNet in PyTorch, written to be fast.

`benchmarks/compare.py` compares it with `experiments/benchmark.py --suite=step`. It is
not part of the package and needs an interpreter with PyTorch. The model is the
published one, optimised as a PyTorch user would do it: one convolution per layer
computes all four gates of [E, up(h_above), h], peepholes are elementwise, and Adam is
the fused one. It runs eagerly.

    python benchmarks/torch_prednet.py --height 120 --width 160 --channels 3,48,96,192

The last line is one JSON object: `seconds_per_window` (median), `frames_per_second`,
`peak_rss_mb`, `parameters`, and the settings.
"""

import argparse
import itertools
import json
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional


class Level(nn.Module):
    """One level: fused gates, peepholes, and the convolutions A and P."""

    def __init__(self, channels, above, below, height, width):
        """Draws the weights, N(0, 1/fan_in).

        Args:
          channels: width C of the level.
          above: width of the level above, 0 at the top.
          below: width of the level below, 0 at the bottom.
          height: rows of the level's map.
          width: columns of the level's map.
        """
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

    def initial_state(self, channels, height, width):
        """Returns zeros (P, h, c) for each level."""
        return [
            tuple(torch.zeros(1, c, height >> i, width >> i) for _ in range(3))
            for i, c in enumerate(channels)
        ]

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
    """Trains on one window of frames [T+1, 1, 3, H, W]; returns the carried state."""
    loss = 0.0
    for x, target in itertools.pairwise(frames):
        state = model(x, state)
        loss = loss + functional.mse_loss(state[0][0], target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return [tuple(s.detach() for s in level) for level in state], loss


def main():
    """Parses the flags, times the windows, prints the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--height", type=int, default=120)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--channels", default="3,48,96,192")
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    channels = [int(c) for c in args.channels.split(",")]
    model = PredNet(channels, args.height, args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    frames = torch.rand(args.window + 1, 1, channels[0], args.height, args.width)
    state = model.initial_state(channels, args.height, args.width)
    seconds = []
    for repeat in range(args.repeats + 1):
        start = time.perf_counter()
        state, loss = train_window(model, optimizer, frames, state)
        loss.item()
        if repeat:  # The first window is warm-up.
            seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    report = {
        "seconds_per_window": median,
        "frames_per_second": args.window / median,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "parameters": sum(p.numel() for p in model.parameters()),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "all_seconds": seconds,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
