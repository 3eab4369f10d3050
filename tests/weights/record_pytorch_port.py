"""Records what a PyTorch port of PredNet predicts, for `test_golden_pytorch.py`.

    python tests/weights/record_pytorch_port.py --port=FOLDER --output=FOLDER

The port is a checkout of eijwat/prednet_in_pytorch (3b827b0) or leido/pytorch-prednet
(bb9259e). Its own classes are built, drawn from a fixed seed and run on the CPU. Needs
torch (2.13.0), safetensors and NumPy, and nothing of this package. Writes NAME.pth,
NAME.safetensors, and NAME.npz with `frames`, uint8 [T, B, H, W, C], and `predictions`
of the same shape in the port's own unit of pixels; predictions[t] is of frames[t], and
zero where the port makes none.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

CHANNELS, R_CHANNELS = (3, 4, 6), (3, 5, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", required=True, type=Path)
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.port.absolute()))
    # leido's port asks for a GPU wherever it makes a tensor.
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.FloatTensor = torch.FloatTensor
    from prednet import PredNet

    torch.manual_seed(0)
    authors = "round_mode" in PredNet.__init__.__code__.co_varnames
    name, largest = ("watanabe_pytorch", 1) if authors else ("lotter_pytorch", 255)
    sizes = (list(CHANNELS), list(R_CHANNELS)) if authors else (R_CHANNELS, CHANNELS)
    network = PredNet(*sizes, output_mode="prediction")
    frames = np.random.default_rng(0).integers(0, 256, (7, 2, 8, 12, 3), np.uint8)
    pixels = frames.astype(np.float32) * np.float32(largest) / np.float32(255)
    shown = torch.from_numpy(pixels.transpose(1, 0, 4, 2, 3).copy())
    predictions = np.zeros_like(pixels)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter *= 1.5  # So that the bottom prediction is clipped somewhere.
        network.conv0[0].weight *= 16 * largest
        network.conv0[0].bias *= largest
        network.cell0.weight_ih[:, : 2 * CHANNELS[0]] /= largest
        network.update_A0[0].weight /= largest
        # A call returns the last prediction alone.
        for t in range(1 if authors else 0, len(frames)):
            predictions[t] = network(shown[:, : t + 1]).numpy().transpose(0, 2, 3, 1)
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / name
    torch.save(network.state_dict(), path.with_suffix(".pth"))
    tensors = dict(network.state_dict())
    safetensors.torch.save_file(tensors, path.with_suffix(".safetensors"))
    np.savez_compressed(
        path.with_suffix(".npz"), frames=frames, predictions=predictions
    )


if __name__ == "__main__":
    main()
