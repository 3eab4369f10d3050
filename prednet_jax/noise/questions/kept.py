"""Keeps the tolerances of a test suite, and compares hand-written ones.

The file next to a test (`test_model.noise.json`) has, by name of the test, an entry per
call of the fixture: the noise, the probability to fail, and for each leaf its tolerance
and its size (RMS). `compare` compares written and measured tolerances as absolute
bounds at the size of the leaf, atol + rtol * size.
"""

import ast
import dataclasses
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np

from prednet_jax.noise import files
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.leaves import named_leaves, rebuilt, rms, wide_leaves
from prednet_jax.noise.questions.assertions import Reference, Tolerance
from prednet_jax.noise.questions.sampling import BoundCall
from prednet_jax.noise.questions.tolerance import default_noise, noise_reference
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.noise.text import format
from prednet_jax.noise.types import Function, PyTree


class _Entry(TypedDict):
    """One call of the fixture; a leaf has the fields of `Tolerance` and its size."""

    noise: str
    failure: float
    leaves: dict[str, dict[str, float]]


def tolerance_file_for(test: Path) -> Path:
    """Returns the path of the file of tolerances of a test file."""
    return test.with_suffix(".noise.json")


def read(file: Path) -> dict[str, list[_Entry]]:
    """Returns the entries of a file, by test; none if there is no file."""
    try:
        tests = json.loads(file.read_text())
        if not all(isinstance(entries, list) for entries in tests.values()):
            raise TypeError("the calls of a test are a list")
        for leaf in _leaves(tests.values()):
            kept = _tolerance(leaf)
            # JSON has NaN, and integers that are no floats (OverflowError).
            for x in (*kept, kept.noise, leaf["size"]):
                if isinstance(x, str) or not 0 <= float(x) < math.inf:
                    raise ValueError("a tolerance is no number from 0 on")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NoiseError(
            f"{file}: {error.strerror}: expected a file that can be read"
        ) from None
    except Exception:  # No JSON, or other JSON, has errors of many kinds.
        raise NoiseError(
            f"{file}: expected tolerances as pytest --noise-update writes them"
        ) from None
    return tests


def _leaves(tests: Iterable[list[_Entry]]) -> list[dict[str, float]]:
    entries = itertools.chain.from_iterable(tests)
    return [leaf for entry in entries for leaf in entry["leaves"].values()]


def _tolerance(leaf: Mapping[str, float]) -> Tolerance:
    # Files of earlier versions have fewer fields, and no file has the limits.
    fields = {f.name for f in dataclasses.fields(Tolerance)} & leaf.keys()
    return Tolerance(**{name: leaf[name] for name in fields})  # type: ignore[arg-type]


def _ratio(rtol: float, atol: float, leaf: Mapping[str, float]) -> float:
    """Returns a bound divided by the measured one, at the size of a leaf."""
    measured = leaf["atol"] + leaf["rtol"] * leaf["size"]
    written = atol + rtol * leaf["size"]
    if measured == 0:
        return 1.0 if written == 0 else math.inf
    return written / measured


class StoredTolerance:
    """The fixture `noise_tolerance` in one test of a file.

    `test` is the test's name, such as `TestModel::test_loss[3]`; `renew` measures anew.
    """

    def __init__(self, path: Path, test: str, renew: bool) -> None:
        self.file, self.test, self.renew = tolerance_file_for(path), test, renew
        self.calls = 0

    def __call__(
        self,
        fn: Function,
        *args: PyTree,
        spec: NoiseSpec | None = None,
        failure: float = 1e-6,
        **options: int,
    ) -> Reference:
        """Returns `noise_reference`, with the kept tolerances if there are any."""
        position, self.calls = self.calls, self.calls + 1
        noise = format(default_noise() if spec is None else spec)
        entries = read(self.file).get(self.test, [])
        if self.renew or position >= len(entries):
            reference = noise_reference(
                fn, *args, spec=spec, failure=failure, **options
            )
            self._write(position, noise, failure, reference)
            return reference
        stored, expected = entries[position], BoundCall(fn, args, {}).result()
        paths = [path for path, _ in named_leaves(expected)]
        if spec is None and stored.get("noise") == "default":
            noise = "default"  # As earlier versions wrote it.
        names = list(stored["leaves"])
        saved = stored.get("noise"), stored.get("failure"), names
        if saved != (noise, failure, paths):
            raise NoiseError(
                f"{self.file}: tolerances of {self.test} were measured for {names}, "
                f"noise {saved[0]}, failure {saved[1]}; the test has {paths}, noise "
                f"{noise}, failure {failure}: renew them by pytest --noise-update"
            )
        tolerances = map(_tolerance, stored["leaves"].values())
        return Reference(expected, rebuilt(expected, list(tolerances)))

    def _write(
        self, position: int, noise: str, failure: float, reference: Reference
    ) -> None:
        """Writes an entry into the file and keeps the entries of other tests."""
        sizes = [rms(x[np.isfinite(x)]) for x in wide_leaves(reference.expected)]
        named = zip(named_leaves(reference.tolerances), sizes, strict=True)
        leaves = {path: {**tol.to_json(), "size": size} for (path, tol), size in named}
        entry = _Entry(noise=noise, failure=failure, leaves=leaves)
        # Workers of pytest-xdist read and write at the same time.
        with files.locked(self.file.parent):
            tests = read(self.file)
            tests[self.test] = [*tests.get(self.test, [])[:position], entry]
            text = json.dumps(dict(sorted(tests.items())), indent=1) + "\n"
            files.write_whole(self.file, text.encode())


# Written tolerances up to so many times the measured one are as they should be.
LOOSE = 10.0
# Names of functions that compare, the names of their tolerances, and the defaults.
COMPARISONS = {
    "assert_allclose": ("rtol", "atol", 1e-7, 0.0, 2),
    "allclose": ("rtol", "atol", 1e-5, 1e-8, 2),
    "isclose": ("rtol", "atol", 1e-5, 1e-8, 2),
    "assert_trees_all_close": ("rtol", "atol", 1e-6, 0.0, None),
    "approx": ("rel", "abs", 1e-6, 1e-12, 1),
    "math.isclose": ("rel_tol", "abs_tol", 1e-9, 0.0, None),
}


class Written(NamedTuple):
    """A tolerance that is written in a test.

    Attributes:
        place: the line, such as `tests/test_model.py:12`.
        test: the test's name, without parameters.
        rtol: the number, None (also for `atol`) if it can only be read by running.
        ratio: the bound divided by the measured one, for the leaf where it is least.
            None if not measured.
        measured: that leaf's tolerance, in words.
        verdict: `looser`, `tighter`, `within`, `not measured` or `not read`.
    """

    place: str
    test: str
    rtol: float | None
    atol: float | None
    ratio: float | None
    measured: str
    verdict: str


class WrittenTolerances(NamedTuple):
    """The result of `compare`: an entry per comparison in a test."""

    written: tuple[Written, ...]

    def __str__(self) -> str:
        lines = [
            f"{row.place} {row.test}: rtol {row.rtol:.2g}, atol {row.atol:.2g} is "
            f"{row.verdict}, {row.ratio:.2g} times the measured ({row.measured})"
            for row in self.written
            if row.verdict in ("looser", "tighter")
        ]
        verdicts = [row.verdict for row in self.written]
        counts = [f"{v} {verdicts.count(v)}" for v in dict.fromkeys(sorted(verdicts))]
        lines.append(
            f"{len(verdicts)} tolerances by hand: {', '.join(counts) or 'none'}"
        )
        if "not measured" in verdicts:
            lines.append("measure by a call of noise_tolerance(fn, *args) in the test")
        return "\n".join(lines)


def compare(path: str) -> WrittenTolerances:
    """Compares the hand-written tolerances of a test file, or of all in a folder.

    A NoiseError is raised if there is no such file or folder, or no Python in it.
    """
    root = Path(path)
    # A name that is too long for the system is no file.
    if not os.path.exists(root) or (root.is_file() and root.suffix != ".py"):
        raise NoiseError(f"{path!r}: expected a test file, or a folder of them")
    tests = {*root.rglob("test_*.py"), *root.rglob("*_test.py")}
    written: list[Written] = []
    for file in [root] if root.is_file() else sorted(tests):
        try:
            module = ast.parse(file.read_text())
        except (SyntaxError, ValueError, OSError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            raise NoiseError(f"{file}: {why}: expected a Python file") from None
        kept = read(tolerance_file_for(file))
        for name, test in _tests(module):
            of_test = [es for key, es in kept.items() if key.partition("[")[0] == name]
            written += _written(file, name, test, _leaves(of_test))
    return WrittenTolerances(tuple(written))


def _tests(module: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields the tests of a file by name, in classes as `TestModel::test_loss`."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}::{n}", test) for n, test in _tests(node))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield node.name, node


def _written(
    file: Path, name: str, test: ast.FunctionDef, leaves: Sequence[Mapping[str, float]]
) -> Iterator[Written]:
    def number(node: ast.expr) -> float | None:
        try:
            return float(ast.literal_eval(node))
        except (ValueError, TypeError):
            return None

    calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda call: call.lineno):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        named = {k.arg for k in node.keywords}
        if named & {"rel_tol", "abs_tol"} or ast.unparse(node.func) == "math.isclose":
            called = {"isclose": "math.isclose"}.get(called, called)
        starred = any(isinstance(a, ast.Starred) for a in node.args)
        if called not in COMPARISONS or starred:
            continue
        relative, absolute, *defaults, first = COMPARISONS[called]
        args = {k.arg: k.value for k in node.keywords}
        if first is not None:
            args |= dict(zip((relative, absolute), node.args[first:], strict=False))
        rtol, atol = (
            number(args[n]) if n in args else default
            for n, default in zip((relative, absolute), defaults, strict=True)
        )
        # In pytest, an absolute tolerance alone replaces the relative one.
        if called == "approx" and absolute in args and relative not in args:
            rtol = 0.0
        about = f"{file}:{node.lineno}", name, rtol, atol
        if rtol is None or atol is None or None in args:
            yield Written(*about, None, "", "not read")
        elif not leaves:
            yield Written(*about, None, "", "not measured")
        else:
            ratios = [_ratio(rtol, atol, leaf) for leaf in leaves]
            ratio = min(ratios)
            least = str(_tolerance(leaves[ratios.index(ratio)]))
            verdict = "tighter" if ratio < 1 else "within"
            yield Written(*about, ratio, least, verdict if ratio <= LOOSE else "looser")
