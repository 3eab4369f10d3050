"""JAX ports of the networks in `ports_torch`, each with faults that can be planted.

A port is called as `port(weights, *inputs, fault="")`. A comment such as
`# fault: epsilon` stands above the statement in which that fault lies. Ports name
their layers in different ways: by a mapping, `checkpoint_name`, Flax's
`capture_intermediates` and NNX.
"""

import flax.linen as nn
import jax
from flax import nnx
from jax import lax
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name as name


def mlp(w, x, fault=""):
    """Returns its layers as a mapping."""
    layers = {}
    for i in range(2):
        eps = 1e-3 if fault == "epsilon" and i == 1 else 1e-5
        mean = x.mean(-1, keepdims=True)
        # fault: unbiased variance
        var = x.var(-1, keepdims=True, ddof=int(fault == "unbiased variance"))
        # fault: epsilon
        h = (x - mean) / jnp.sqrt(var + eps)
        scale = 1.0 if fault == "missing scale" else w[f"norm{i}.weight"]
        # fault: missing scale
        h = h * scale + w[f"norm{i}.bias"]
        layers[f"norm{i}"] = h
        h = layers[f"up{i}"] = h @ w[f"up{i}.weight"].T + w[f"up{i}.bias"]
        # fault: gelu
        h = jax.nn.gelu(h, approximate=fault == "gelu")
        layers[f"act{i}"] = h
        bias = 0.0 if fault == "missing bias" and i else w[f"down{i}.bias"]
        # fault: missing bias
        h = h @ w[f"down{i}.weight"].T + bias
        layers[f"down{i}"] = h
        # fault: missing residual
        x = h + (0.0 if fault == "missing residual" else x)
    square = w["square.weight"]
    square = square if fault == "transposed square" else square.T
    # fault: transposed square
    x = layers["square"] = x @ square + w["square.bias"]
    x = layers["head"] = x @ w["head.weight"].T + w["head.bias"]
    axis = 0 if fault == "softmax axis" else -1
    # fault: softmax axis
    layers["probabilities"] = jax.nn.softmax(x, axis)
    return layers


class _Cnn(nn.Module):
    fault: str = ""

    @nn.compact
    def __call__(self, x):
        fault = self.fault
        x = nn.Conv(8, (3, 3), padding=1, name="conv1")(x)
        batch = fault == "batch statistics"
        # fault: batch statistics
        x = nn.BatchNorm(use_running_average=not batch, epsilon=1e-5, name="bn1")(x)
        x = nn.relu(x)
        self.sow("intermediates", "relu1", x)
        shift = ((1, 0), (1, 0)) if fault == "pool shift" else "VALID"
        # fault: pool shift
        x = nn.max_pool(x, (2, 2), (2, 2), shift)[:, :8, :8]
        self.sow("intermediates", "pool", x)
        pad = "SAME" if fault == "same padding" else 1
        # fault: same padding
        x = nn.Conv(8, (3, 3), 2, padding=pad, name="conv2")(x)
        eps = 1e-3 if fault == "batch epsilon" else 1e-5
        # fault: batch epsilon
        x = nn.BatchNorm(use_running_average=True, epsilon=eps, name="bn2")(x)
        slope = 0.01 if fault == "slope" else 0.1
        # fault: slope
        x = nn.leaky_relu(x, slope)
        self.sow("intermediates", "relu2", x)
        x = x.mean((1, 2))
        self.sow("intermediates", "average", x)
        return nn.Dense(5, name="head")(x)


def cnn(w, x, fault=""):
    """Returns what Flax captures."""
    params = {
        n: {"kernel": w[f"{n}.weight"].transpose(2, 3, 1, 0), "bias": w[f"{n}.bias"]}
        for n in ("conv1", "conv2")
    }
    for n in ("bn1", "bn2"):
        params[n] = {"scale": w[f"{n}.weight"], "bias": w[f"{n}.bias"]}
    if fault == "flipped kernel":
        # fault: flipped kernel
        params["conv2"]["kernel"] = params["conv2"]["kernel"][::-1, ::-1]
    stats = {
        n: {"mean": w[f"{n}.running_mean"], "var": w[f"{n}.running_var"]}
        for n in ("bn1", "bn2")
    }
    params["head"] = {"kernel": w["head.weight"].T, "bias": w["head.bias"]}
    variables = {"params": params, "batch_stats": stats}
    x = x.transpose(0, 2, 3, 1)
    if fault == "channels reversed":
        # fault: channels reversed
        x = x[..., ::-1]
    capture = {
        "capture_intermediates": True,
        "mutable": ["intermediates", "batch_stats"],
    }
    y, found = _Cnn(fault).apply(variables, x, **capture)
    return y, found["intermediates"]


def attention(w, x, fault=""):
    """Names its layers with `checkpoint_name`."""
    batch, time, size = x.shape

    def dense(n, x):
        return name(x @ w[f"{n}.weight"].T + w[f"{n}.bias"], n)

    def split(x):
        return x.reshape(batch, time, 4, 8)

    def rotary(x):
        rate = 10000.0 ** (-jnp.arange(4) / 4)
        start = 1 if fault == "position off by one" else 0
        # fault: position off by one
        angle = (jnp.arange(time) + start)[:, None, None] * rate
        a, b = x[..., :4], x[..., 4:]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        if fault == "rotary interleaved":
            # fault: rotary interleaved
            a, b = x[..., ::2], x[..., 1::2]
        one, two = a * cos - b * sin, b * cos + a * sin
        return jnp.concatenate([one, two], -1)

    q, k = name(rotary(split(dense("query", x))), "rotary_q"), dense("key", x)
    k, v = name(rotary(split(k)), "rotary_k"), split(dense("value", x))
    scores = jnp.einsum("bthd,bshd->bhts", q, k)
    # fault: score scale
    scores = scores / (1.0 if fault == "score scale" else 8**0.5)
    past = jnp.tril(jnp.ones((time, time), bool), -1 if fault == "mask" else 0)
    # fault: mask
    scores = name(jnp.where(past, scores, -1e9), "scores")
    weights = name(jax.nn.softmax(scores), "weights")
    if fault == "bfloat16":
        weights, v = weights.astype(jnp.bfloat16), v.astype(jnp.bfloat16)
    # fault: bfloat16
    mixed = jnp.einsum("bhts,bshd->bthd", weights, v)
    mixed = mixed.astype(jnp.float32)
    if fault == "heads merged":
        # fault: heads merged
        mixed = mixed.swapaxes(2, 3)
    mixed = name(mixed.reshape(batch, time, size), "mixed")
    return dense("out", mixed)


def lstm(w, tokens, fault=""):
    """Names its layers in a loop."""
    x = name(w["embedding.weight"][tokens], "embedding")

    def step(state, x):
        h, c = state
        gates = x @ w["cell.weight_ih"].T + h @ w["cell.weight_hh"].T
        gates = gates + w["cell.bias_ih"]
        second = 0.0 if fault == "missing second bias" else w["cell.bias_hh"]
        # fault: missing second bias
        gates = gates + second
        i, f, g, o = jnp.split(gates, 4, -1)
        if fault == "gate order":
            # fault: gate order
            i, f, o, g = jnp.split(gates, 4, -1)
        extra = 1.0 if fault == "forget bias" else 0.0
        # fault: forget bias
        f = jax.nn.sigmoid(f + extra)
        c = f * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        c = name(c, "memory")
        # fault: missing tanh
        h = jax.nn.sigmoid(o) * (c if fault == "missing tanh" else jnp.tanh(c))
        h = name(h, "hidden")
        return (h, c), h

    zeros = jnp.zeros((len(tokens), 16))
    if fault == "step off by one":
        # fault: step off by one
        x = jnp.concatenate([jnp.zeros_like(x[:, :1]), x[:, :-1]], 1)
    _, states = lax.scan(step, (zeros, zeros), x.swapaxes(0, 1))
    y = name(states.swapaxes(0, 1) @ w["head.weight"].T + w["head.bias"], "head")
    return {"logprobs": jax.nn.log_softmax(y)}


def gru(w, x, fault=""):
    """Names its layers in a loop; time is the second axis here."""
    kernel, bias = w["conv.weight"].transpose(2, 1, 0), w["conv.bias"]
    x = x.swapaxes(1, 2)
    pads = [(1, 2)] if fault == "asymmetric padding" else [(2, 2)]
    # fault: asymmetric padding
    x = lax.conv_general_dilated(
        x, kernel, (2,), pads, dimension_numbers=("NWC", "WIO", "NWC")
    )
    x = name(x + bias, "conv")
    # fault: softplus
    x = name(
        jnp.log1p(jnp.exp(x)) if fault != "softplus" else jax.nn.relu(x), "softplus"
    )

    def step(h, x):
        a = x @ w["cell.weight_ih"].T + w["cell.bias_ih"]
        b = h @ w["cell.weight_hh"].T + w["cell.bias_hh"]
        (r, z, n), (rh, zh, nh) = jnp.split(a, 3, -1), jnp.split(b, 3, -1)
        r, z = jax.nn.sigmoid(r + rh), jax.nn.sigmoid(z + zh)
        n = jnp.tanh(n + r * nh)
        if fault == "update gate":
            # fault: update gate
            z = 1 - z
        h = (1 - z) * n + z * h
        h = name(h, "hidden")
        return h, h

    steps = x.swapaxes(0, 1)
    steps = steps[::-1] if fault == "time reversed" else steps
    # fault: time reversed
    _, states = lax.scan(step, jnp.zeros((len(x), 16)), steps)
    states = states.swapaxes(0, 1)
    score = name(states @ w["score.weight"].T + w["score.bias"], "score")
    # fault: pooling axis
    weights = name(
        jax.nn.softmax(score, -1 if fault == "pooling axis" else 1), "attention"
    )
    # fault: mean for sum
    pooled = (
        (weights * states).mean(1)
        if fault == "mean for sum"
        else (weights * states).sum(1)
    )
    pooled = name(pooled, "pooled")
    return {"head": pooled @ w["head.weight"].T + w["head.bias"]}


def unet(w, x, fault=""):
    """Returns its layers as a mapping, channels last."""
    layers = {}
    sides = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}

    def conv(n, x, stride, pad):
        kernel = w[f"{n}.weight"].transpose(2, 3, 1, 0)
        x = lax.conv_general_dilated(
            x, kernel, (stride,) * 2, [(pad, pad)] * 2, **sides
        )
        return x + w[f"{n}.bias"]

    def norm(n, x, groups):
        y = x.reshape(*x.shape[:3], groups, -1)
        axes = (1, 2) if fault == "instance statistics" else (1, 2, 4)
        # fault: instance statistics
        mean, var = y.mean(axes, keepdims=True), y.var(axes, keepdims=True)
        y = (y - mean) / jnp.sqrt(var + 1e-6)
        return y.reshape(x.shape) * w[f"{n}.weight"] + w[f"{n}.bias"]

    x = layers["enter"] = conv("enter", x.transpose(0, 2, 3, 1), 1, 1)
    groups = 2 if fault == "groups" else 4
    # fault: groups
    x = layers["norm1"] = norm("norm1", x, groups)
    beta = 1.702 if fault == "swish" else 1.0
    # fault: swish
    skip = layers["act1"] = x * jax.nn.sigmoid(beta * x)
    x = layers["down"] = conv("down", skip, 2, 1)
    x = layers["norm2"] = norm("norm2", x, 4)
    # fault: elu
    x = jax.nn.elu(x, 0.9 if fault == "elu" else 1.0)
    layers["act2"] = x
    kernel = w["up.weight"].transpose(2, 3, 0, 1)
    kernel = kernel if fault == "deconvolution" else kernel[::-1, ::-1]
    # fault: deconvolution
    x = lax.conv_general_dilated(x, kernel, (1, 1), [(2, 2)] * 2, (2, 2), **sides)
    x = layers["up"] = x + w["up.bias"]
    both = [skip, x] if fault == "skip order" else [x, skip]
    # fault: skip order
    x = layers["joined"] = jnp.concatenate(both, -1)
    total = lax.reduce_window(
        x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), [(0, 0), (1, 1), (1, 1), (0, 0)]
    )
    count = 9.0
    if fault == "padding counted":
        count = lax.reduce_window(
            jnp.ones_like(x),
            0.0,
            lax.add,
            (1, 3, 3, 1),
            (1, 1, 1, 1),
            [(0, 0), (1, 1), (1, 1), (0, 0)],
        )
    # fault: padding counted
    x = layers["pool"] = total / count
    layers["leave"] = conv("leave", x, 1, 0)
    return layers


class _Llama(nnx.Module):
    def __init__(self, w):
        self.w = nnx.data(
            {n.replace(".weight", ""): nnx.Param(x) for n, x in w.items()}
        )

    def __call__(self, x, fault):
        w = self.w
        batch, time, _ = x.shape

        def dense(n, x):
            y = x @ w[n][...].T
            self.sow(nnx.Intermediate, n, y)
            return y

        def norm(n, x):
            eps = 1e-6 if fault == "rms epsilon" else 1e-5
            # fault: rms epsilon
            y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)
            extra = 1.0 if fault == "one plus scale" else 0.0
            # fault: one plus scale
            y = y * (w[n][...] + extra)
            self.sow(nnx.Intermediate, n, y)
            return y

        def rotate(n, x):
            base = 500000.0 if fault == "rotary base" else 10000.0
            # fault: rotary base
            angle = jnp.arange(time)[:, None, None] * base ** (-jnp.arange(4) / 4)
            a, b = x[..., ::2], x[..., 1::2]
            cos, sin = jnp.cos(angle), jnp.sin(angle)
            one, two = a * cos - b * sin, a * sin + b * cos
            if fault == "rotary halves":
                # fault: rotary halves
                y = jnp.concatenate([one, two], -1)
            else:
                y = jnp.stack([one, two], -1).reshape(x.shape)
            self.sow(nnx.Intermediate, n, y)
            return y

        h = norm("norm1", x)
        q = rotate("rotated_q", dense("q", h).reshape(batch, time, 4, 8))
        k = rotate("rotated_k", dense("k", h).reshape(batch, time, 2, 8))
        v = dense("v", h).reshape(batch, time, 2, 8)
        if fault == "grouped heads":
            # fault: grouped heads
            k, v = (jnp.tile(y, (1, 1, 2, 1)) for y in (k, v))
        else:
            k, v = (jnp.repeat(y, 2, 2) for y in (k, v))
        scores = jnp.einsum("bthd,bshd->bhts", q, k)
        # fault: scale by size
        scores = scores * (8**-1.0 if fault == "scale by size" else 8**-0.5)
        past = jnp.tril(jnp.ones((time, time), bool))
        weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf))
        self.sow(nnx.Intermediate, "weights", weights)
        mixed = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(batch, time, 32)
        self.sow(nnx.Intermediate, "mixed", mixed)
        x = x + dense("o", mixed)
        self.sow(nnx.Intermediate, "residual", x)
        # fault: wrong residual
        h = norm("norm2", h if fault == "wrong residual" else x)
        gate, up = dense("gate", h), dense("up", h)
        if fault == "gate and up swapped":
            gate, up = up, gate
        # fault: gate and up swapped
        gated = jax.nn.silu(gate) * up
        self.sow(nnx.Intermediate, "gated", gated)
        return dense("logits", x + dense("down", gated))


def llama(w, x, fault=""):
    """Returns what an NNX module sows."""
    capture = nnx.capture(lambda model: model(x, fault), nnx.Intermediate)
    return capture(_Llama(w))


def vit(w, x, fault=""):
    """Names its layers with `checkpoint_name`, and returns the last."""

    def dense(n, x):
        return name(x @ w[f"{n}.weight"].T + w[f"{n}.bias"], n)

    def norm(n, x):
        eps = 1e-5 if fault == "default epsilon" else 1e-6
        # fault: default epsilon
        y = jax.nn.standardize(x, epsilon=eps)
        return name(y * w[f"{n}.weight"] + w[f"{n}.bias"], n)

    kernel = w["patches.weight"].transpose(2, 3, 1, 0)
    x = x.transpose(0, 2, 3, 1)
    x = lax.conv_general_dilated(
        x, kernel, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = name(x + w["patches.bias"], "patches")
    if fault == "patch order":
        x = x.swapaxes(1, 2)
    # fault: patch order
    x = x.reshape(len(x), -1, 24)
    first = jnp.broadcast_to(w["cls"], (len(x), 1, 24))
    # fault: token last
    x = jnp.concatenate([x, first] if fault == "token last" else [first, x], 1)
    at = w["positions"]
    # fault: positions shifted
    at = jnp.roll(at, 1, 1) if fault == "positions shifted" else at
    x = name(x + at, "tokens")
    h = norm("norm1", x)
    both = h @ w["attention.in_proj_weight"].T + w["attention.in_proj_bias"]
    q, k, v = (y.reshape(*y.shape[:2], 3, 8) for y in jnp.split(both, 3, -1))
    if fault == "key and value swapped":
        k, v = v, k
    # fault: key and value swapped
    h = jax.nn.dot_product_attention(q, k, v)
    h = h.reshape(*h.shape[:2], 24)
    h = name(
        h @ w["attention.out_proj.weight"].T + w["attention.out_proj.bias"], "attention"
    )
    x = name(x + h, "attended")
    h = dense("fc1", norm("norm2", x))
    # fault: exact gelu
    h = name(jax.nn.gelu(h, approximate=fault != "exact gelu"), "gelu")
    h = dense("fc2", h)
    # fault: layer scale
    h = h * (1.0 if fault == "layer scale" else w["scale"])
    x = name(x + h, "encoded")
    # fault: mean for token
    x = x.mean(1) if fault == "mean for token" else x[:, 0]
    return {"head": x @ w["head.weight"].T + w["head.bias"]}
