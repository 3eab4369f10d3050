"""Makes every table and figure of the documents anew, from committed records.

    python experiments/tables.py

Nothing is measured again. Writes what has changed, names it, and ends with status 1 if
anything had: then a document and its records disagreed.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import _cli

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "results" / "published"


def tables() -> dict[str, Callable[[], str]]:
    """What makes each table, by the name that documents mark it with."""
    from prednet_jax import records
    from prednet_jax.report import document_tables as make

    read = functools.partial(_read, records.read_json)
    return {
        "comparison": lambda: make.comparison(read("verdict.json")),
        "noise-cost": lambda: make.noise_cost(read("noise_cost.json")),
        "noise-cost-160x120": lambda: make.noise_cost(read("noise_cost_160x120.json")),
        "gradient-noise": lambda: make.gradient_noise(
            {
                "PredNet": read("gradient_noise_prednet.json"),
                "autoencoder": read("gradient_noise_autoencoder.json"),
            }
        ),
    }


def figures() -> dict[Path, Callable[[], bytes]]:
    """What makes each figure, by its file."""
    return {}


def _read(reader: Callable, name: str) -> dict:
    return reader(PUBLISHED / name)


def main(argv: list[str]) -> None:
    """Fills every document, draws every figure, and says what has changed."""
    del argv
    from prednet_jax import errors, records
    from prednet_jax.report import documents

    made, used, changed = tables(), set(), []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        old = path.read_text()
        try:
            used |= set(documents.names(old))
            new = documents.fill(old, made)
        except errors.UserError as error:
            raise errors.UserError(f"{path.relative_to(ROOT)}: {error}") from None
        if new != old:
            records.write_bytes(path, new.encode())
            changed.append(path)
    for path, draw in figures().items():
        content = draw()
        if not path.exists() or path.read_bytes() != content:
            records.write_bytes(path, content)
            changed.append(path)
    if unused := sorted(set(made) - used):
        raise errors.UserError(f"tables that no document shows: {', '.join(unused)}")
    print(f"{len(used)} tables, {len(figures())} figures; {len(changed)} changed")
    for path in changed:
        print(f"changed: {path.relative_to(ROOT)}")
    raise SystemExit(1 if changed else 0)


if __name__ == "__main__":
    _cli.run(main)
