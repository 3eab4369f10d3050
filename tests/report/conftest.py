"""A small synthetic comparison in the layout that compare_backends writes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from prednet_jax import report
from prednet_jax.statistics import paired

# Each arm: its role, meaning, and by how much its last loss differs, with the spread.
ARMS = {
    "float32": ("control", "float32, deterministic order (the control)", 0.0, 0.0),
    "float64": ("descriptive", "float64, deterministic order", 0.0, 2e-7),
    "threads_1": ("null", "float32, 1 thread(s)", 0.0, 0.0),
    "reduction_order": ("treatment", "fresh random order of reductions", 0.0, 2e-4),
    "ulp": ("descriptive", "up to one ulp on every result", 0.0, 3e-4),
    "gaussian_0.001": ("gaussian", "Gaussian noise, 0.001 of the gradient", 0.0, 1e-3),
    "gaussian_0.1": ("gaussian", "Gaussian noise, 0.1 of the gradient", 0.02, 5e-3),
    "stale_targets": ("stale", "Chainer's CPU bug: the last frame", 0.35, 2e-2),
}
SEEDS = tuple(range(6))
# As a manifest has it: without a place to break, and wider than a narrow screen.
NOISE = (
    "reduction_order:partials=8,granularity=tile,tile=32,schedule=call,"
    "profile=uniform_worst_case,shortest=256"
)


def losses(model: str, arm: str, seed: int, updates: int) -> np.ndarray:
    """A falling curve; each seed has its own level and each arm its own offset."""
    shared = np.random.default_rng([seed, model == "prednet"])
    level = np.exp(0.08 * shared.normal())
    bumps = np.exp(0.25 * shared.normal(size=updates))
    start, end = (0.12, 0.028) if model == "prednet" else (0.23, 0.05)
    fall = end + (start - end) * np.exp(-np.arange(updates) / (updates / 5))
    *_, gap, spread = ARMS[arm]
    if model == "autoencoder" and arm == "stale_targets":
        gap = spread = 0.0
    own = np.random.default_rng([seed, list(ARMS).index(arm)])
    ramp = np.linspace(0, 1, updates)
    return level * fall * bumps * (1 + ramp * (gap + spread * own.normal()))


def contrast(model: str, arm: str, updates: int, margin: float) -> dict:
    last = max(1, updates // 5)
    control = np.array([losses(model, "float32", s, updates)[-last:] for s in SEEDS])
    treated = np.array([losses(model, arm, s, updates)[-last:] for s in SEEDS])
    d = treated.mean(1) - control.mean(1)
    half, same = 1.2 * d.std(ddof=1), not d.any()
    return paired(treated.mean(1), control.mean(1), margin=margin).as_dict() | {
        "model": model,
        "treatment": arm,
        "role": ARMS[arm][0],
        "control": "float32",
        "metric": f"mean loss of the last {last} updates",
        "ci_low": d.mean() - half,
        "ci_high": d.mean() + half,
        "p_holm_family": f"all {len(ARMS) - 1} contrasts of {model}",
        "bitwise_equal": len(SEEDS) if same else 0,
    }


def verdict(updates: int = 60) -> dict:
    """A complete verdict.json."""
    models = {"prednet": ("refuted", 9.4e-4), "autoencoder": ("inconclusive", 1.6e-3)}
    contrasts = [
        contrast(model, arm, updates, margin)
        for model, (_, margin) in models.items()
        for arm in ARMS
        if arm != "float32"
    ]
    details = {
        model: {"verdict": word, "sentence": "This is about emulated noise only."}
        for model, (word, _) in models.items()
    }
    skipped = [(name, name, "GPU") for name in ("gpu", "gpu_deterministic")]
    arms = [
        {
            "model": model,
            "name": name,
            "role": role,
            "meaning": meaning,
            "command": f"experiments/train.py --workdir='runs/{model}/{name}'",
            "status": "run" if name in ARMS else "skipped: no GPU found",
            "noise": {"reduction_order": NOISE, "ulp": "ulp"}.get(name, "none"),
            "threads": 2,
            "measured_parallelism": 1.97,
            "seconds_per_update": 0.0231 if name in ARMS else None,
        }
        for model in models
        for name, role, meaning in [*((a, *of[:2]) for a, of in ARMS.items()), *skipped]
    ]
    return {
        "contrasts": contrasts,
        "verdict": {model: word for model, (word, _) in models.items()},
        "details": details,
        "margins": {
            model: {"value": margin, "origin": "2 % of the control's mean loss"}
            for model, (_, margin) in models.items()
        },
        "arms": arms,
        "excluded": ["autoencoder, gaussian_0.1, seed 5: loss not finite <nan>"],
        "fingerprints": {
            model: {
                str(seed): {
                    "initial_params_sha256": f"{seed:x}a" * 32,
                    "data_order_sha256": f"{seed:x}b" * 32,
                }
                for seed in SEEDS
            }
            for model in models
        },
        "design": {
            "command": ".venv/bin/python experiments/compare_backends.py",
            "flags": {"updates": updates, "seeds": 6, "channels": "3,12,24,48"},
            "seeds": list(SEEDS),
            "versions": {"python": "3.11.9", "jax": "0.10.2", "numpy": "2.3.1"},
            "git_commit": "279bc6c0ffee",
            "device": {"platform": "cpu", "processor": "Xeon", "threads": 2},
        },
        "seconds": 431.7,
    }


def photographs(count: int, height: int, width: int, channels: int) -> np.ndarray:
    """Moving blobs, uint8 [count, height, width, channels]."""
    y, x = np.mgrid[:height, :width]
    t = np.arange(count)[:, None, None, None]
    phase = np.arange(channels)
    waves = np.sin((x[..., None] + 2 * t) / 7 + phase) * np.cos(
        y[..., None] / 9 - t / 5
    )
    return np.uint8(127 + 120 * waves)


def write(folder, updates: int = 60, height: int = 12, width: int = 16) -> None:
    """Writes the whole comparison into a folder."""
    for model in ("prednet", "autoencoder"):
        shape = (height, width, 3) if model == "prednet" else (height, height, 1)
        clip = photographs(7, *shape)
        for arm in ARMS:
            for seed in SEEDS:
                run = folder / "runs" / model / arm / f"seed_{seed}"
                run.mkdir(parents=True)
                (run / "manifest.json").write_text(
                    json.dumps({"model": model, "seed": seed})
                )
                curve = losses(model, arm, seed, updates)
                (run / "metrics.jsonl").write_text(
                    "".join(
                        json.dumps({"update": i + 1, "loss": loss}) + "\n"
                        for i, loss in enumerate(curve)
                    )
                )
            if arm not in ("float32", "reduction_order", "stale_targets"):
                continue
            blur = 0.85 if arm != "stale_targets" else 0.6
            noisy = 0.5 + blur * (clip[1:] / 255 - 0.5)
            np.savez_compressed(
                folder / "runs" / model / arm / "seed_0" / "examples.npz",
                frames=clip[1:],
                before=clip[:-1] if model == "prednet" else clip[:5],
                predictions=noisy.astype(np.float32),
            )
    (folder / "verdict.json").write_text(json.dumps(verdict(updates), indent=1))


@pytest.fixture(name="verdict")
def a_verdict():
    """A fresh verdict, free to be changed."""
    return verdict()


@pytest.fixture
def broken(comparison, tmp_path):
    """A copy of the comparison, free to be damaged."""
    return Path(shutil.copytree(comparison, tmp_path / "copy"))


@pytest.fixture(scope="session")
def built(comparison, tmp_path_factory):
    """A comparison with its report."""
    folder = tmp_path_factory.mktemp("built") / "comparison"
    shutil.copytree(comparison, folder)
    report.build(folder)
    return folder


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """A complete comparison; not to be changed."""
    folder = tmp_path_factory.mktemp("comparison")
    write(folder)
    return folder
