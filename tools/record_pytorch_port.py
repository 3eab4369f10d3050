"""Records what a PyTorch port of PredNet predicts, for tests of `load_pytorch`.

    python tools/record_pytorch_port.py --port=FOLDER --output=tests/golden/pytorch_tiny

FOLDER is a checkout of eijwat/prednet_in_pytorch or of leido/pytorch-prednet, whose own
classes are built, drawn from a fixed seed, and run on the CPU. Needs torch, safetensors
and NumPy, and nothing of this package (recorded with torch 2.13.0). Writes NAME.pth,
NAME.safetensors and NAME.npz with `frames`
uint8 [T, B, H, W, C] and `predictions` [T, B, H, W, C] in the port's own unit of
pixels; predictions[t] is of frames[t], those that the port does not make are zero.
"""

import argparse
import pathlib
import sys

import numpy as np
import safetensors.torch
import torch

CHANNELS, SIZE, STEPS, BATCH = (3, 4, 6), (8, 12), 7, 2


def main() -> None:
    """Builds the port, runs it, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", required=True, type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.port.absolute()))
    # The port of coxlab's code asks for a GPU wherever it makes a tensor.
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.cuda.FloatTensor = torch.FloatTensor  # type: ignore[misc]
    import prednet

    torch.manual_seed(0)
    authors = "round_mode" in prednet.PredNet.__init__.__code__.co_varnames
    if authors:
        name, largest = "watanabe_pytorch", 1.0
        network = prednet.PredNet(list(CHANNELS), [3, 5, 6], output_mode="prediction")
    else:
        name, largest = "lotter_pytorch", 255.0
        network = prednet.PredNet((3, 5, 6), CHANNELS, output_mode="prediction")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter *= 1.5  # So that the bottom prediction is clipped somewhere.
        network.conv0[0].weight *= 16 * largest
        network.conv0[0].bias *= largest
        network.cell0.weight_ih[:, : 2 * CHANNELS[0]] /= largest
        network.update_A0[0].weight /= largest
    frames = np.random.default_rng(0).integers(
        0, 256, (STEPS, BATCH, *SIZE, CHANNELS[0]), np.uint8
    )
    pixels = frames.astype(np.float32) * np.float32(largest) / np.float32(255)
    shown = torch.from_numpy(pixels.transpose(1, 0, 4, 2, 3).copy())
    predictions = np.zeros_like(pixels)
    with torch.no_grad():
        # A call returns the last prediction alone.
        for t in range(1 if authors else 0, STEPS):
            made = network(shown[:, : t + 1])
            predictions[t] = made.numpy().transpose(0, 2, 3, 1)
    arguments.output.mkdir(parents=True, exist_ok=True)
    place = arguments.output / name
    state = network.state_dict()
    torch.save(state, place.with_suffix(".pth"))
    safetensors.torch.save_file(dict(state), place.with_suffix(".safetensors"))
    np.savez_compressed(
        place.with_suffix(".npz"), frames=frames, predictions=predictions
    )
    clipped = float((predictions >= largest).mean())
    print(f"{place}: {clipped:.3f} of the predicted values are clipped")


if __name__ == "__main__":
    main()
