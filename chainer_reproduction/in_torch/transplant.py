"""The published loop in PyTorch: one target buffer, its memory shared or copied.

`torch.from_numpy` shares the buffer's memory, as `numpy.asarray` does under Chainer.
Two networks, both with the loss of k frames added up before backward:

    predictor     a small convolutional recurrent network that predicts the next frame
    autoencoder   reconstructs single pictures, shown in random order

Prints one JSON object. Runs in PyTorch's own environment; called by `python -m
chainer_reproduction transplant`.
"""

import argparse
import hashlib
import itertools
import json

import numpy as np
import torch
from torch import nn

RATE = 1e-3


class Predictor(nn.Module):
    """Convolutional gated recurrent network: frame t and a state -> frame t + 1."""

    def __init__(self, channels=3, width=8):
        super().__init__()
        self.gates = nn.Conv2d(channels + width, 2 * width, 3, padding=1)
        self.candidate = nn.Conv2d(channels + width, width, 3, padding=1)
        self.out = nn.Conv2d(width, channels, 3, padding=1)
        self.width = width

    def start(self, height, width):
        """The zero state."""
        return torch.zeros(1, self.width, height, width)

    def forward(self, x, state):
        """The prediction and the new state."""
        both = torch.cat([x, state], 1)
        update, reset = torch.sigmoid(self.gates(both)).chunk(2, 1)
        new = torch.tanh(self.candidate(torch.cat([x, reset * state], 1)))
        state = update * state + (1 - update) * new
        return torch.clamp(self.out(state), 0, 1), state


class Autoencoder(nn.Module):
    """Two strided convolutions down, two transposed ones up."""

    def __init__(self, channels=3, width=8):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1),
        )

    def forward(self, x):
        """The reconstruction."""
        return self.layers(x)


def train(network, pictures, every, copied, seed):
    """SHA-256 of the final weights, and the losses `[T - 1]`, as the script trains.

    Args:
        network: `predictor` or `autoencoder`.
        pictures: float32 `[T, C, H, W]`.
        every: k, losses that are added up before backward.
        copied: whether each target gets memory of its own.
        seed: of the initial weights.
    """
    torch.manual_seed(seed)
    predicts = network == "predictor"
    if not predicts:
        # As pictures of digits are: unlike the ones before and after.
        pictures = pictures[np.random.RandomState(seed).permutation(len(pictures))]
    model = Predictor() if predicts else Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    state = model.start(*pictures.shape[2:]) if predicts else None
    buffer = np.empty((1, *pictures.shape[1:]), np.float32)
    total, losses = 0, []
    for i in range(len(pictures) - 1):
        x = torch.from_numpy(pictures[i : i + 1].copy())
        buffer[0] = pictures[i + 1] if predicts else pictures[i]
        target = torch.from_numpy(buffer.copy() if copied else buffer)
        if predicts:
            made, state = model(x, state)
        else:
            made = model(x)
        loss = nn.functional.mse_loss(made, target)
        losses.append(float(loss.detach()))
        total = total + loss
        if (i + 1) % every == 0:
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            total = 0
            state = state.detach() if predicts else None
    sha = hashlib.sha256()
    for name, array in sorted(model.state_dict().items()):
        sha.update(name.encode() + array.numpy().tobytes())
    return sha.hexdigest(), losses


def main():
    """Trains every case once and prints the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", required=True, help="npz with uint8 [T, H, W, C]")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with np.load(args.frames) as file:
        pictures = file["frames"].transpose(0, 3, 1, 2).astype(np.float32) / 255
    rows = []
    cases = itertools.product(
        ("predictor", "autoencoder"), (1, 5, 10), range(args.seeds), (False, True)
    )
    for network, every, seed, copied in cases:
        final, losses = train(network, pictures, every, copied, seed)
        row = {
            "network": network,
            "losses_per_update": every,
            "seed": seed,
            "target": "copied" if copied else "shared",
            "frames": len(losses),
            "mean_loss": f"{np.mean(losses[-len(losses) // 4 :]):.9g}",
            "final_sha256": final,
            "torch": torch.__version__.split("+")[0],
            "numpy": np.__version__,
        }
        rows.append(row)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
