"""Records small PyTorch models layer by layer, for the ports in `tests.accuracy.ports`.

    python tests/accuracy/ports_torch.py --output=DIR --seeds=8

It needs PyTorch and NumPy alone, and writes DIR/<network>_<seed>.npz with `input/...`,
`weights/...` (the state_dict) and `layers/...`, which forward hooks recorded.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import silu


def record(model, *inputs):
    """Returns the output of every module by name, of several calls stacked."""
    layers = {}

    def hook(name):
        def keep(module, args, output):
            first = output[0] if isinstance(output, tuple) else output
            layers.setdefault(name, []).append(first.detach().float().numpy().copy())

        return keep

    for name, module in model.named_modules():
        module.register_forward_hook(hook(name or "model"))
    with torch.no_grad():
        model(*inputs)
    return {n: x[0] if len(x) == 1 else np.stack(x) for n, x in layers.items()}


class Mlp(nn.Module):
    """Two residual blocks with layer normalisation and GELU."""

    def __init__(self):
        super().__init__()
        for i in range(2):
            setattr(self, f"norm{i}", nn.LayerNorm(24))
            setattr(self, f"up{i}", nn.Linear(24, 48))
            setattr(self, f"act{i}", nn.GELU())
            setattr(self, f"down{i}", nn.Linear(48, 24))
        self.square = nn.Linear(24, 24)
        self.head = nn.Linear(24, 5)
        self.probabilities = nn.Softmax(-1)

    def forward(self, x):
        for i in range(2):
            h = getattr(self, f"norm{i}")(x)
            h = getattr(self, f"act{i}")(getattr(self, f"up{i}")(h))
            x = x + getattr(self, f"down{i}")(h)
        return self.probabilities(self.head(self.square(x)))

    @staticmethod
    def inputs():
        return (torch.randn(12, 24),)


class Cnn(nn.Module):
    """Convolutions with batch normalisation, pooling and a linear head."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu1 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.relu2 = nn.LeakyReLU(0.1)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.pool(self.relu1(self.bn1(self.conv1(x))))
        x = self.average(self.relu2(self.bn2(self.conv2(x))))
        return self.head(x.flatten(1))

    @staticmethod
    def inputs():
        return (torch.randn(3, 3, 16, 16),)


class Rotary(nn.Module):
    """Rotates halves of the features by the position: [B, H, T, D]."""

    def forward(self, x):
        half = x.shape[-1] // 2
        rate = 10000.0 ** (-torch.arange(half) / half)
        angle = torch.arange(x.shape[-2])[:, None] * rate
        a, b = x[..., :half], x[..., half:]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    """Causal attention with rotary positions, four heads of eight features."""

    def __init__(self, size=32, heads=4):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(size, size) for _ in range(4)
        )
        self.rotary_q, self.rotary_k = Rotary(), Rotary()
        self.scores, self.weights, self.mixed = (nn.Identity() for _ in range(3))

    def forward(self, x):
        batch, time, size = x.shape

        def split(y):
            return y.view(batch, time, self.heads, -1).transpose(1, 2)

        q = self.rotary_q(split(self.query(x)))
        k = self.rotary_k(split(self.key(x)))
        v = split(self.value(x))
        scores = q @ k.transpose(-1, -2) / (size // self.heads) ** 0.5
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        scores = self.scores(scores.masked_fill(future, -1e9))
        weights = self.weights(scores.softmax(-1))
        mixed = self.mixed((weights @ v).transpose(1, 2).reshape(batch, time, size))
        return self.out(mixed)

    @staticmethod
    def inputs():
        return (torch.randn(2, 10, 32),)


class Lstm(nn.Module):
    """An embedding, an LSTM cell over five steps and a linear head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.cell = nn.LSTMCell(12, 16)
        self.hidden, self.memory = nn.Identity(), nn.Identity()
        self.head = nn.Linear(16, 20)
        self.logprobs = nn.LogSoftmax(-1)

    def forward(self, tokens):
        x = self.embedding(tokens)
        h = c = torch.zeros(len(tokens), 16)
        states = []
        for t in range(tokens.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            h, c = self.hidden(h), self.memory(c)
            states.append(h)
        return self.logprobs(self.head(torch.stack(states, 1)))

    @staticmethod
    def inputs():
        return (torch.randint(0, 20, (4, 5)),)


class Gru(nn.Module):
    """A bank of strided convolutions over time, a GRU and attention pooling."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 16, 5, stride=2, padding=2)
        self.softplus = nn.Softplus()
        self.cell = nn.GRUCell(16, 16)
        self.hidden = nn.Identity()
        self.score = nn.Linear(16, 1)
        self.attention = nn.Softmax(1)
        self.pooled = nn.Identity()
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.softplus(self.conv(x)).transpose(1, 2)
        h, states = torch.zeros(len(x), 16), []
        for t in range(x.shape[1]):
            h = self.hidden(self.cell(x[:, t], h))
            states.append(h)
        states = torch.stack(states, 1)
        weights = self.attention(self.score(states))
        return self.head(self.pooled((weights * states).sum(1)))

    @staticmethod
    def inputs():
        return (torch.randn(3, 4, 10),)


class Unet(nn.Module):
    """An encoder and decoder with group normalisation, SiLU and a skip connection."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(2, 8, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, 8, eps=1e-6)
        self.act1 = nn.SiLU()
        self.down = nn.Conv2d(8, 16, 4, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(4, 16, eps=1e-6)
        self.act2 = nn.ELU()
        self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.joined = nn.Identity()
        self.pool = nn.AvgPool2d(3, stride=1, padding=1)
        self.leave = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        skip = self.act1(self.norm1(self.enter(x)))
        h = self.up(self.act2(self.norm2(self.down(skip))))
        h = self.joined(torch.cat([h, skip], 1))
        return self.leave(self.pool(h))

    @staticmethod
    def inputs():
        return (torch.randn(2, 2, 8, 12),)


class RmsNorm(nn.Module):
    """Root mean square normalisation."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Llama(nn.Module):
    """A decoder block: grouped queries, interleaved rotary positions, SwiGLU."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(32), RmsNorm(32)
        self.q = nn.Linear(32, 32, bias=False)
        self.k, self.v = (nn.Linear(32, 16, bias=False) for _ in range(2))
        self.rotated_q, self.rotated_k = nn.Identity(), nn.Identity()
        self.weights, self.mixed = nn.Identity(), nn.Identity()
        self.o = nn.Linear(32, 32, bias=False)
        self.residual, self.gated = nn.Identity(), nn.Identity()
        self.gate, self.up = (nn.Linear(32, 48, bias=False) for _ in range(2))
        self.down = nn.Linear(48, 32, bias=False)
        self.logits = nn.Linear(32, 20, bias=False)

    @staticmethod
    def rotate(x):
        half = x.shape[-1] // 2
        rate = 10000.0 ** (-torch.arange(half) / half)
        angle = torch.arange(x.shape[1])[:, None, None] * rate
        a, b = x[..., ::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def forward(self, x):
        batch, time, _ = x.shape
        h = self.norm1(x)
        q = self.rotated_q(self.rotate(self.q(h).view(batch, time, 4, 8)))
        k = self.rotated_k(self.rotate(self.k(h).view(batch, time, 2, 8)))
        v = self.v(h).view(batch, time, 2, 8)
        k, v = (y.repeat_interleave(2, 2) for y in (k, v))
        scores = torch.einsum("bthd,bshd->bhts", q, k) * 8**-0.5
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        weights = self.weights(scores.masked_fill(future, -torch.inf).softmax(-1))
        mixed = torch.einsum("bhts,bshd->bthd", weights, v)
        x = self.residual(x + self.o(self.mixed(mixed.reshape(batch, time, 32))))
        h = self.norm2(x)
        return self.logits(x + self.down(self.gated(silu(self.gate(h)) * self.up(h))))

    @staticmethod
    def inputs():
        return (torch.randn(2, 9, 32),)


class Vit(nn.Module):
    """Patches, a class token, positions and one pre-norm encoder layer."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, stride=4)
        self.cls = nn.Parameter(torch.randn(1, 1, 24))
        self.positions = nn.Parameter(torch.randn(1, 17, 24) * 0.1)
        self.tokens, self.attended = nn.Identity(), nn.Identity()
        self.norm1 = nn.LayerNorm(24, eps=1e-6)
        self.attention = nn.MultiheadAttention(24, 3, batch_first=True)
        self.norm2 = nn.LayerNorm(24, eps=1e-6)
        self.fc1 = nn.Linear(24, 48)
        self.gelu = nn.GELU(approximate="tanh")
        self.fc2 = nn.Linear(48, 24)
        self.scale = nn.Parameter(torch.rand(24) + 0.5)
        self.encoded = nn.Identity()
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        x = self.tokens(x + self.positions)
        h = self.norm1(x)
        x = self.attended(x + self.attention(h, h, h, need_weights=False)[0])
        h = self.fc2(self.gelu(self.fc1(self.norm2(x))))
        x = self.encoded(x + self.scale * h)
        return self.head(x[:, 0])

    @staticmethod
    def inputs():
        return (torch.randn(2, 3, 16, 16),)


NETWORKS = {
    each.__name__.lower(): each
    for each in (Mlp, Cnn, Attention, Lstm, Gru, Unet, Llama, Vit)
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--seeds", type=int, default=1, help="recordings a network")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="which")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name in options.networks.split(","):
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            model = NETWORKS[name]().eval()
            # Scales, biases and statistics that a fault in them would change.
            for value in model.state_dict().values():
                if value.ndim < 2 and value.is_floating_point():
                    value += 0.2 * torch.rand_like(value)
            inputs = model.inputs()
            arrays = {f"input/{i}": x.numpy() for i, x in enumerate(inputs)}
            state = model.state_dict().items()
            arrays |= {f"weights/{n}": x.numpy().copy() for n, x in state}
            layers = record(model, *inputs)
            arrays |= {f"layers/{n}": x for n, x in layers.items()}
            np.savez_compressed(options.output / f"{name}_{seed}.npz", **arrays)


if __name__ == "__main__":
    main()
