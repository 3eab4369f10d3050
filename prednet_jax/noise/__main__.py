"""The questions about noise, asked from a shell about a function in a file.

    python -m prednet_jax.noise coverage model:loss --args=batch.npz
    python -m prednet_jax.noise localize model:loss --args=batch.npz
    python -m prednet_jax.noise decisions model:predict --args=batch.npz --json
    python -m prednet_jax.noise explain model:loss --args=x.npz --a=cpu.npz --b=gpu.npz
    python -m prednet_jax.noise audit model:loss --args=batch.npz --gpu=h100
    python -m prednet_jax.noise invariance model:predict --args=batch.npz --batch=1
    python -m prednet_jax.noise record model:loss --args=x.npz --output=run.npz
    python -m prednet_jax.noise first_difference model:loss --recording=run.npz
    python -m prednet_jax.noise devices model:loss --args=x.npz --mesh=data=1,8
    python -m prednet_jax.noise tolerances tests/

MODULE is imported as `python -m` would, the current directory first. FILE.npz is what
`numpy.savez` writes: its arrays arr_0, arr_1, ... are the positional arguments of the
function, all others keyword arguments by their names. Names with / make dictionaries:
params/Dense_0/kernel is params["Dense_0"]["kernel"]. Each becomes an array that JAX
traces; what a function wants as a Python number or a text has to be bound in MODULE.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import inspect
import itertools
import json
import math
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from prednet_jax.noise.coverage import coverage
from prednet_jax.noise.errors import NoiseError, integer
from prednet_jax.noise.gpu.audit import audit
from prednet_jax.noise.localize import effects, localize
from prednet_jax.noise.questions import recording, runs
from prednet_jax.noise.questions.decisions import decisions
from prednet_jax.noise.questions.devices import devices_table, from_text
from prednet_jax.noise.questions.digits import digits_table
from prednet_jax.noise.questions.explain import explain
from prednet_jax.noise.questions.first_difference import first_difference
from prednet_jax.noise.questions.invariance import invariance
from prednet_jax.noise.questions.kept import compare
from prednet_jax.noise.questions.tolerance import tolerance, tolerance_table
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.noise.text import parse


class Asked(NamedTuple):
    """What a command is asked about: a call, the noise, and the command line."""

    call: runs.Call
    spec: NoiseSpec
    options: argparse.Namespace

    def draws(self, default: int = 16) -> int:
        """The number of noisy runs."""
        if self.options.draws is None:
            return default
        integer("--draws", self.options.draws, 1)
        return self.options.draws

    def of(self, tool: Callable, *first: Any) -> Any:
        """What a tool, which takes the arguments of the function, finds."""
        return tool(*first, *self.call.args, **self.call.kwargs)

    def drawn(self, tool: Callable) -> Any:
        """Likewise of one that takes a PRNG key first."""
        seed = self.options.seed
        integer("--seed", seed, -(2**63), 2**63 - 1)
        return self.of(tool, jax.random.key(seed))


class Answer(NamedTuple):
    """What a command found, where text and JSON are not those of one report."""

    text: Any
    data: Any

    def __str__(self) -> str:
        return str(self.text)


def _localize(asked: Asked) -> Any:
    fn, parts = asked.call.fn, asked.options.parts
    if parts is None:
        return asked.drawn(localize(fn, asked.spec, samples=asked.draws(8)))
    measure = effects(fn, asked.spec, parts.split(","), samples=asked.draws(3))
    found = asked.drawn(measure)
    return Answer(found, {"parts": list(found)})


def _decisions(asked: Asked) -> Answer:
    file, labels = asked.options.labels, None
    if file is not None:
        held, named = _read("labels", file)
        several = [*held, *named.values()]
        if len(several) != 1:
            raise NoiseError(f"--labels={file}: {len(several)} arrays: expected one")
        (labels,) = several
    search = decisions(asked.call.fn, asked.spec, draws=asked.draws(), labels=labels)
    report = asked.drawn(search)
    data = {"decisions": list(report), "evaluation": report.evaluation}
    return Answer(report, data)


def _tolerance(asked: Asked) -> Answer:
    failure, fn = asked.options.failure, asked.call.fn
    found = asked.drawn(tolerance(fn, asked.spec, draws=asked.draws(), failure=failure))
    notes = runs.notes(asked.call.reaches(runs.reaching(asked.spec)))
    text = "\n".join([tolerance_table(found), *notes])
    return Answer(text, {"leaves": dict(runs.named_leaves(found)), "notes": notes})


def _explain(asked: Asked) -> Any:
    pair = {name: getattr(asked.options, name) for name in ("a", "b")}
    if None in pair.values():
        raise NoiseError("explain: expected two results, --a=FILE.npz --b=FILE.npz")
    shapes = asked.call.program().shapes.result()
    results = (_result(name, file, shapes) for name, file in pair.items())
    return asked.drawn(explain(asked.call.fn, *results, draws=asked.draws(8)))


def _invariance(asked: Asked) -> Any:
    batch = asked.options.batch.split(",")
    if not all(i.strip().isdecimal() for i in batch):
        raise NoiseError(
            f"--batch={asked.options.batch}: expected positions, such as 0,2"
        )
    options = {"draws": asked.draws(8), "seed": asked.options.seed}
    return asked.of(invariance(asked.call.fn, batch=[*map(int, batch)], **options))


def _tolerances(asked: Asked) -> Any:
    return compare(asked.options.function)


def _devices(asked: Asked) -> Any:
    fn, spec, draws = asked.call.fn, asked.spec, asked.draws(8)
    mesh, in_specs = from_text(asked.options.mesh, asked.options.specs)
    table = devices_table(fn, mesh=mesh, in_specs=in_specs, spec=spec, draws=draws)
    return asked.drawn(table)


def _audit(asked: Asked) -> Any:
    names = ("gpu", "devices", "deterministic")
    options = {name: getattr(asked.options, name) for name in names}
    return asked.of(audit(asked.call.fn, **options))


def _record(asked: Asked) -> Answer:
    path = asked.options.output
    if path is None:
        raise NoiseError("record: expected a file to write, --output=FILE.npz")
    made = asked.of(recording.record(asked.call.fn))
    made.save(path)
    return Answer(f"{made}: {path}", {"recording": str(made), "output": path})


def _first_difference(asked: Asked) -> Any:
    path = asked.options.recording
    if path is None:
        raise NoiseError("first_difference: expected --recording=FILE.npz, of record")
    fn, spec, draws = asked.call.fn, asked.spec, asked.draws(8)
    search = first_difference(
        fn, recording.load_recording(path), spec=spec, draws=draws
    )
    return asked.drawn(search)


class Command(NamedTuple):
    """A question: how it is asked, its noise if none is given, what it is about."""

    ask: Callable[[Asked], Any]
    noise: str
    about: str


COMMANDS: Mapping[str, Command] = {
    "coverage": Command(
        lambda asked: asked.of(coverage(asked.call.fn, asked.spec)),
        "reduction_order",
        "which equations noise reaches, and which not",
    ),
    "localize": Command(
        _localize, "reduction_order", "whose noise moves the result most"
    ),
    "digits": Command(
        lambda asked: asked.drawn(
            digits_table(asked.call.fn, asked.spec, draws=asked.draws())
        ),
        "reduction_order+stochastic_rounding",
        "significant decimal digits of each result",
    ),
    "tolerance": Command(
        _tolerance, "reduction_order", "the tolerance a test should have"
    ),
    "explain": Command(_explain, "none", "what makes two results differ"),
    "decisions": Command(_decisions, "reduction_order", "which decisions noise flips"),
    "record": Command(_record, "none", "write what every equation computes"),
    "first_difference": Command(
        _first_difference,
        "reduction_order:granularity=element+ulp",
        "where a run here first differs from a recorded one",
    ),
    "invariance": Command(
        _invariance,
        "none",
        "whether a row's result depends on how the function is called",
    ),
    "tolerances": Command(
        _tolerances,
        "none",
        "which tests have a looser or tighter tolerance than measured; takes a folder",
    ),
    "devices": Command(
        _devices,
        "reduction_order:profile=collectives,collectives=sequential",
        "what it computes over meshes of devices that are not here",
    ),
    "audit": Command(_audit, "none", "what on a GPU will vary; needs no GPU"),
}
# Flags that are texts: the command that takes one (empty: several do), and what for.
TEXTS = {
    "args=FILE.npz": ("", "arguments; none if left out"),
    "noise=SPEC": (
        "",
        "such as reduction_order:granularity=element or ulp; default: reduction_order, "
        "for digits with stochastic_rounding, for first_difference of each element and "
        "with ulp",
    ),
    "parts=NAME,...": ("localize", "effects of these scopes or paths, not a search"),
    "labels=FILE.npz": (
        "decisions",
        "of an evaluation set, which the function answers",
    ),
    "a=FILE.npz": ("explain", "one result"),
    "b=FILE.npz": ("explain", "the other"),
    "output=FILE.npz": ("record", "what it writes"),
    "recording=FILE.npz": ("first_difference", "what record wrote"),
    "mesh=AXIS=SIZE,...[;...]": (
        "devices",
        "sizes of the axes, several to compare, as in data=1,8,64",
    ),
    "specs=AXIS,...[;...]": (
        "devices",
        "for each positional argument the mesh axes of its axes, - for none: -;data "
        "spreads the rows of the second",
    ),
}
# Flags with a default, which gives their type: the command, the default, what for.
DEFAULTS = {
    "seed": ("", 0, "of the PRNG"),
    "failure": ("tolerance", 1e-6, "probability to fail"),
    "batch": (
        "invariance",
        "0",
        "positions of the arguments with a batch axis 0, I,...",
    ),
    "gpu": ("audit", "h100", "which GPU, such as gtx1080"),
    "devices": ("audit", 1, "number of GPUs"),
    "deterministic": ("audit", False, "under --xla_gpu_deterministic_ops=true"),
}
# Flags of several commands: the default, and the commands that take none.
_DRAWLESS = ("audit", "coverage", "record", "tolerances")
NOT_TAKEN = {
    "args": (None, ("tolerances",)),
    "draws": (None, _DRAWLESS),
    "seed": (0, _DRAWLESS),
}


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:16} {c.about}" for name, c in COMMANDS.items())
    parser = _Parser(
        prog="python -m prednet_jax.noise",
        description=f"{__doc__}\ncommands:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    parser.add_argument("function", metavar="MODULE:FUNCTION")
    for text, (owner, about) in TEXTS.items():
        name, _, shown = text.partition("=")
        about = f"{owner}: {about}" if owner else about
        parser.add_argument(f"--{name}", metavar=shown, help=about)
    few = "explain, invariance, localize, devices and first_difference 8"
    parser.add_argument("--draws", type=int, help=f"noisy runs; default 16; {few}")
    for name, (owner, default, about) in DEFAULTS.items():
        about = f"{owner}: {about}" if owner else about
        if default is False:
            parser.add_argument(f"--{name}", action="store_true", help=about)
            continue
        parser.add_argument(
            f"--{name}",
            type=type(default),
            default=default,
            help=f"{about}; default {default}",
        )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    options = _parser().parse_args(argv)
    ask, default, _ = COMMANDS[options.command]
    text = default if options.noise is None else options.noise
    try:
        _check_flags(options)
        spec = parse(text)
        if default == "none" and text != default:
            raise NoiseError(f"--noise={text}: expected no noise for {options.command}")
        args, kwargs = _read("args", options.args) if options.args else ((), {})
        # What the user's code prints is no part of the answer.
        with contextlib.redirect_stdout(sys.stderr):
            # `tolerances` is asked about a folder of tests, and runs no function.
            call = runs.Call(_tolerances, args, kwargs)
            if options.command != "tolerances":
                call = call._replace(fn=_function(options.function))
                _check(call, options)
            answer = ask(Asked(call, spec, options))
    except NoiseError as error:
        one_line = " ".join(str(error).split())
        print(f"python -m prednet_jax.noise: {one_line}", file=sys.stderr)
        return 2
    if options.json:
        head = {"command": options.command, "function": options.function}
        if options.command != "audit":
            head["noise"] = text
        data = answer.data if isinstance(answer, Answer) else answer
        print(json.dumps(head | plain_data(data), allow_nan=False))
    else:
        print(answer)
    return 0


def _check_flags(options: argparse.Namespace) -> None:
    """Refuses flags that would do nothing."""
    owners: dict[str, tuple[str, Any]] = {
        name: (owner, default) for name, (owner, default, _) in DEFAULTS.items()
    }
    for text, (owner, _) in TEXTS.items():
        owners[text.partition("=")[0]] = owner, None
    for name, (owner, default) in owners.items():
        if owner not in ("", options.command) and getattr(options, name) != default:
            raise NoiseError(
                f"--{name}: expected with {owner} only, not with {options.command}"
            )
    for name, (default, commands) in NOT_TAKEN.items():
        given = getattr(options, name)
        if options.command in commands and given != default:
            raise NoiseError(
                f"--{name}={given}: expected no --{name} with {options.command}"
            )


def _read(flag: str, file: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arrays of --flag=file: by position, and those by name, nested."""
    try:
        with np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
    except Exception:
        # NumPy, zipfile and zlib each have their own.
        raise NoiseError(
            f"--{flag}={file}: expected a file of arrays as numpy.savez writes it"
        ) from None
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise NoiseError(
                f"--{flag}={file}: {name} is of type {array.dtype}: expected numbers; "
                "save bfloat16 as float32 and convert it in the function"
            )
    count = next(i for i in itertools.count() if f"arr_{i}" not in arrays)
    positional = tuple(arrays.pop(f"arr_{i}") for i in range(count))
    nested: dict[str, Any] = {}
    for name, array in arrays.items():
        *around, last = name.split("/")
        place: Any = nested
        for part in around:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last in place:
            raise NoiseError(
                f"--{flag}={file}: {name} is inside of another array or around one: "
                "expected names of which none is a folder of another"
            )
        place[last] = array
    return positional, nested


def _result(flag: str, file: str, shapes: Any) -> Any:
    """A result of the shapes given: leaves by position, or nested by name."""
    positional, named = _read(flag, file)
    leaves, structure = jax.tree.flatten(shapes)
    found: Any = jax.tree.structure(named)
    if not positional and found == structure:
        return named
    if named or len(positional) != len(leaves):
        raise NoiseError(
            f"--{flag}={file}: {len(positional)} arrays arr_0, arr_1, ... and "
            f"{len(named)} with names: expected the {len(leaves)} leaves of the result "
            "in order, or of a dict by name"
        )
    return jax.tree.unflatten(structure, positional)


def plain_data(value: Any) -> Any:
    """A report as JSON has it; NaN and infinities become None."""
    if hasattr(value, "to_json"):
        return plain_data(value.to_json())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_data(vars(value))
    if hasattr(value, "_asdict"):
        return plain_data(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): plain_data(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(x) for x in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain_data(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | None) else str(value)


def _function(name: str) -> Callable:
    """The function that MODULE:FUNCTION names."""
    module_name, colon, attribute = name.partition(":")
    relative = module_name.startswith(".")
    if relative or not (module_name and colon and attribute):
        raise NoiseError(
            f"{name!r}: expected MODULE:FUNCTION, such as model:loss of ./model.py"
        )
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Not of a module that this one imports.
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise NoiseError(
            f"{name!r}: no module {module_name!r}: expected one in the current "
            "directory, or installed"
        ) from None
    try:
        value = operator.attrgetter(attribute)(module)
    except AttributeError as error:
        there = getattr(error.obj, "__dict__", {})
        public = [n for n, x in there.items() if callable(x) and n[0] != "_"]
        raise NoiseError(
            f"{name!r}: no {error.name!r} there: expected one of "
            f"{', '.join(public[:12]) or 'its functions'}"
        ) from None
    if not callable(value):
        raise NoiseError(f"{name!r} is {type(value).__name__}: expected a function")
    return value


def _check(call: runs.Call, options: argparse.Namespace) -> None:
    """Refuses arguments that do not fit the signature of the function."""
    try:
        signature = inspect.signature(call.fn)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        given = "without --args"
        if options.args:
            given = (
                f"with --args={options.args}, which holds {len(call.args)} positional "
                f"arguments and the names {sorted(call.kwargs)}"
            )
        raise NoiseError(f"{options.function}{signature} {given}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
