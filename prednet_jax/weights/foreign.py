"""Sentences about weights of other programs that this package does not read."""

import os
from pathlib import Path

from prednet_jax.errors import UserError

_BY_SUFFIX = {
    (".index", ".meta", ".data-00000-of-00001"): "checkpoint",
    (".pb", ".tflite"): "graph",
    (".onnx",): "onnx",
    (".msgpack",): "flax",
    (".json", ".yaml", ".yml"): "description",
}
_BY_MEMBER = {
    ("saved_model.pb", "saved_model.pbtxt"): "saved_model",
    ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"): "orbax",
    ("checkpoint",): "checkpoint",
}
_KERAS = "in Keras, load it into the model and call model.save('w.h5')"
_SENTENCES = {
    "checkpoint": f"a checkpoint of TensorFlow, which is not read; {_KERAS}",
    "saved_model": f"a SavedModel of TensorFlow, which is not read; {_KERAS}",
    "graph": "a graph of TensorFlow, which is not read; in Keras, save the model that "
    "it was made of by model.save('w.h5')",
    "onnx": "a graph of ONNX, which is not read; save the weights in the program that "
    "exported it, as a state dict (PyTorch) or .h5 (Keras)",
    "flax": "parameters of Flax, without their network; read them by flax."
    "serialization.msgpack_restore, and write them by weights.save_safetensors("
    "path, config, params)",
    "orbax": "a directory of orbax without network.json; restore it by orbax, and "
    "write it by weights.save_orbax(path, config, params)",
    "description": "the description of a model, without weights; give the file of "
    "weights, next to which it is found",
    "pickle": "a pickle, which is not run, such as torch.save wrote before 1.6; load "
    "it in PyTorch and call torch.save(model.state_dict(), 'w.pth')",
}


def refuse(path: Path) -> None:
    """Raises a UserError that tells what a file or folder is, if it is a known kind."""
    if os.path.isdir(path):
        names = {member.name for member in path.iterdir()}
        kind = next((k for m, k in _BY_MEMBER.items() if names & {*m}), None)
    elif os.path.isfile(path.with_name(f"{path.name}.index")):
        kind = "checkpoint"  # The prefix of the names of its files.
    else:
        of_suffix = (k for s, k in _BY_SUFFIX.items() if path.suffix in s)
        kind = next(of_suffix, None) if os.path.isfile(path) else None
        if kind is None and os.path.isfile(path):
            with path.open("rb") as file:
                kind = "pickle" if file.read(1) == b"\x80" else None
    if kind is not None:
        raise UserError(f"{path}: {_SENTENCES[kind]}") from None
