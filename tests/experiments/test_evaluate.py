import json

import jax
import numpy as np
import pytest
from skimage.metrics import structural_similarity

import prednet_jax
from prednet_jax import weights
from prednet_jax.models import sequences

RNG = np.random.default_rng(0)


def scored(forked, tmp_path, config, made, *flags):
    """Weights that nobody trained, and what evaluate.py writes of them."""
    params = prednet_jax.init_params(config, jax.random.key(0))
    weights.save_safetensors(tmp_path / "w.safetensors", config, params)
    record = tmp_path / "record.json"
    done = forked(
        "evaluate.py",
        f"--weights={tmp_path / 'w.safetensors'}",
        f"--data={made}",
        f"--output={record}",
        *flags,
    )
    assert done.returncode == 0, done.stderr
    return params, json.loads(record.read_text()), done.stdout


def test_moving_mnist_ten_to_ten(tmp_path, forked):
    """Sums over a frame's pixels, and SSIM with the range of 2, as OpenSTL has them."""
    frames = RNG.integers(0, 256, (20, 3, 32, 32), np.uint8)
    made = tmp_path / "test.npz"
    shown = frames.swapaxes(0, 1).reshape(-1, 32, 32, 1)
    np.savez(made, frames=shown, boundaries=np.arange(0, 60, 20))
    config = prednet_jax.PredNetConfig(channels=(1, 2), height=32, width=32)
    flags = ("--split=all", "--frames=20", "--extrapolate_from=10", "--sequences=0")
    params, record, said = scored(
        forked, tmp_path, config, made, *flags, "--ssim_range=2"
    )
    truth = frames[..., None] / np.float32(255)  # [T, B, H, W, C]
    found, _ = sequences.predict_sequence(params, config, truth, extrapolate_from=10)
    wrong = (found - truth)[10:]
    of = record["extrapolated"]
    # np.mean(wrong ** 2, axis=(frames, sequences)).sum(), likewise of |wrong|.
    assert of["squared_error"] == pytest.approx(
        np.square(wrong).mean(axis=(0, 1)).sum(), rel=1e-4
    )
    assert of["absolute_error"] == pytest.approx(
        np.abs(wrong).mean(axis=(0, 1)).sum(), rel=1e-4
    )
    ssim = [
        structural_similarity(
            truth[t, b], found[t, b], data_range=2, channel_axis=-1, win_size=7
        )
        for t in range(10, 20)
        for b in range(3)
    ]
    assert of["ssim"] == pytest.approx(np.mean(ssim), rel=1e-4)
    copied = np.square(truth[9] - truth[10:]).mean(axis=(0, 1)).sum()
    assert of["copy_squared_error"] == pytest.approx(copied, rel=1e-4)
    # Pooled over sequences, and only then divided.
    assert of["mse"] == pytest.approx(np.square(wrong).mean(), rel=1e-4)
    assert of["ratio"] == pytest.approx(of["mse"] / of["copy_mse"])
    assert of["psnr"] == pytest.approx(-10 * np.log10(of["mse"]))
    assert (record["sequences"], record["frames"], record["split"]) == (3, 20, "all")
    assert "extrapolated: mse" in said
    _, last, said = scored(forked, tmp_path, config, made, *flags, "--skip=2")
    wrong = float(np.square(found[1:10, 2] - truth[1:10, 2]).mean())
    assert (last["sequences"], last["skip"]) == (1, 2)
    assert last["observed"]["mse"] == pytest.approx(wrong, rel=1e-4)
