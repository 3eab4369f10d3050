import ast
import dataclasses
import re
from pathlib import Path

from prednet_jax.config import AutoencoderConfig, PredNetConfig
from prednet_jax.noise import __main__ as command
from prednet_jax.objectives import Method
from prednet_jax.runs.design import Setup
from prednet_jax.training.recipe import Recipe

ROOT = Path(__file__).parents[1]
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z_]+)(?![\w-])")
# absl's, and those of TFDS, pip and XLA.
OTHERS = {"file_format", "help", "target", "upgrade", "xla_gpu_deterministic_ops"}


def texts(path):
    """Strings of a file that are no docstrings, with their lines."""
    tree = ast.parse(path.read_text())
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        # A word alone is an argument for another program, and no message.
        if not isinstance(text, str) or id(node) in documentation:
            continue
        if not text.startswith("--") or " " in text:
            yield node.lineno, text


def defined():
    """Flags that the scripts and the package's own commands declare."""
    # What `_flags.define_fields` makes flags of.
    records = (Recipe, Setup, Method, PredNetConfig, AutoencoderConfig)
    found = {field.name for record in records for field in dataclasses.fields(record)}
    found |= set(command.FLAGS)
    for folder in ("experiments", "prednet_jax"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            found |= set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', text))
            found |= set(re.findall(r'add_argument\(\s*f?"--(\w+)"', text))
    return found


def unknown(paths, known):
    return [
        f"{path.relative_to(ROOT)}:{line}: --{name}"
        for path in paths
        for line, text in texts(path)
        for name in FLAG.findall(text)
        if name not in known and name not in OTHERS
    ]


def test_every_flag_in_a_message_is_defined():
    known = defined()
    assert {"workdir", "allow_outside", "init_weights"} <= known
    package = sorted((ROOT / "prednet_jax").rglob("*.py"))
    scripts = sorted((ROOT / "experiments").glob("*.py"))
    assert unknown([*package, *scripts], known) == []
