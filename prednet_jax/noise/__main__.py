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
import importlib.util
import inspect
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from prednet_jax.noise.arguments import split_static
from prednet_jax.noise.coverage import coverage
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.inject import traced
from prednet_jax.noise.localize import effects, localize
from prednet_jax.noise.questions import files, runs
from prednet_jax.noise.questions.decisions import decisions
from prednet_jax.noise.questions.first_difference import first_difference
from prednet_jax.noise.questions.recording import load_recording, record
from prednet_jax.noise.specs import NoiseSpec
from prednet_jax.noise.text import parse


class Asked(NamedTuple):
    """What a command is asked about.

    Attributes:
        fn: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        spec: the noise.
        options: of the command line.
    """

    fn: Callable
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    spec: NoiseSpec
    options: argparse.Namespace

    @property
    def key(self) -> Any:
        """The PRNG key of `--seed`."""
        return jax.random.key(self.options.seed)

    def draws(self, default: int) -> int:
        """The number of noisy runs."""
        return default if self.options.draws is None else self.options.draws


class Answer(NamedTuple):
    """What a command found: as text, and what becomes JSON."""

    text: str
    data: Any


def _coverage(asked: Asked) -> Answer:
    report = coverage(asked.fn, asked.spec)(*asked.args, **asked.kwargs)
    return Answer(str(report), report)


def _localize(asked: Asked) -> Answer:
    if asked.options.parts is not None:
        parts = asked.options.parts.split(",")
        measure = effects(asked.fn, asked.spec, parts, samples=asked.draws(3))
        found = measure(asked.key, *asked.args, **asked.kwargs)
        return Answer(str(found), {"parts": list(found)})
    search = localize(asked.fn, asked.spec, samples=asked.draws(8))
    report = search(asked.key, *asked.args, **asked.kwargs)
    return Answer(str(report), report)


def _decisions(asked: Asked) -> Answer:
    file, labels = asked.options.labels, None
    if file is not None:
        held, named = files.read("labels", file)
        labels = [*held, *named.values()]
        if len(labels) != 1:
            raise NoiseError(f"--labels={file}: {len(labels)} arrays: expected one")
        (labels,) = labels
    search = decisions(asked.fn, asked.spec, draws=asked.draws(16), labels=labels)
    report = search(asked.key, *asked.args, **asked.kwargs)
    return Answer(
        str(report), {"decisions": list(report), "evaluation": report.evaluation}
    )


def _digits(asked: Asked) -> Answer:
    from prednet_jax.noise.questions.digits import digits_table

    measure = digits_table(asked.fn, asked.spec, draws=asked.draws(16))
    table = measure(asked.key, *asked.args, **asked.kwargs)
    return Answer(str(table), table)


def _tolerance(asked: Asked) -> Answer:
    from prednet_jax.noise.questions.tolerance import tolerance, tolerance_table

    options = asked.options
    measure = tolerance(
        asked.fn, asked.spec, draws=asked.draws(16), failure=options.failure
    )
    found = measure(asked.key, *asked.args, **asked.kwargs)
    leaves, _ = jax.tree_util.tree_flatten_with_path(found)
    rows = {jax.tree_util.keystr(path) or "result": leaf for path, leaf in leaves}
    reaches = runs.reaches(
        asked.fn, runs.reaching(asked.spec), asked.args, asked.kwargs
    )
    notes = runs.notes(reaches)
    text = "\n".join([tolerance_table(found), *notes])
    return Answer(text, {"leaves": rows, "notes": notes})


def _explain(asked: Asked) -> Answer:
    options = asked.options
    if options.a is None or options.b is None:
        raise NoiseError("explain: expected two results, --a=FILE.npz --b=FILE.npz")
    a, b = (_result(asked, name, getattr(options, name)) for name in ("a", "b"))
    from prednet_jax.noise.questions.explain import explain

    place = explain(asked.fn, a, b, draws=asked.draws(8))
    report = place(asked.key, *asked.args, **asked.kwargs)
    return Answer(str(report), report)


def _invariance(asked: Asked) -> Answer:
    from prednet_jax.noise.questions.invariance import invariance

    options = asked.options
    batch = options.batch.split(",")
    if not all(i.strip().isdecimal() for i in batch):
        raise NoiseError(f"--batch={options.batch}: expected positions, such as 0,2")
    measure = invariance(
        asked.fn, batch=[*map(int, batch)], draws=asked.draws(8), seed=options.seed
    )
    report = measure(*asked.args, **asked.kwargs)
    return Answer(str(report), report)


def _tolerances(asked: Asked) -> Answer:
    from prednet_jax.noise.questions.kept import compare

    found = compare(asked.options.function)
    return Answer(str(found), {"written": list(found.written)})


def _devices(asked: Asked) -> Answer:
    from prednet_jax.noise.questions.devices import devices_table, from_text

    options = asked.options
    mesh, in_specs = from_text(options.mesh, options.specs)
    compare = devices_table(
        asked.fn, mesh=mesh, in_specs=in_specs, spec=asked.spec, draws=asked.draws(8)
    )
    table = compare(asked.key, *asked.args, **asked.kwargs)
    return Answer(str(table), table)


def _audit(asked: Asked) -> Answer:
    from prednet_jax.noise.gpu.audit import audit

    options = asked.options
    ask = audit(
        asked.fn,
        gpu=options.gpu,
        devices=options.devices,
        deterministic=options.deterministic,
        time_limit=options.time_limit,
    )
    report = ask(*asked.args, **asked.kwargs)
    return Answer(str(report), report)


def _result(asked: Asked, flag: str, file: str) -> Any:
    """A result of the function, read from a file."""
    static, arrays = split_static((asked.args, asked.kwargs))
    shapes = traced(static.call(asked.fn), arrays).shapes.result()
    return files.result(flag, file, shapes)


def _record(asked: Asked) -> Answer:
    path = asked.options.output
    if path is None:
        raise NoiseError("record: expected a file to write, --output=FILE.npz")
    recording = record(asked.fn)(*asked.args, **asked.kwargs)
    recording.save(path)
    told = {"recording": str(recording), "output": path}
    return Answer(f"{recording}: {path}", told)


def _first_difference(asked: Asked) -> Answer:
    path = asked.options.recording
    if path is None:
        raise NoiseError("first_difference: expected --recording=FILE.npz, of record")
    recording, draws = load_recording(path), asked.draws(8)
    search = first_difference(asked.fn, recording, spec=asked.spec, draws=draws)
    report = search(asked.key, *asked.args, **asked.kwargs)
    return Answer(str(report), report)


COMMANDS: Mapping[str, tuple[Callable[[Asked], Answer], str, str]] = {
    "coverage": (
        _coverage,
        "reduction_order",
        "which equations noise reaches, and which not",
    ),
    "localize": (_localize, "reduction_order", "whose noise moves the result most"),
    "digits": (
        _digits,
        "reduction_order+stochastic_rounding",
        "significant decimal digits of each result",
    ),
    "tolerance": (_tolerance, "reduction_order", "the tolerance a test should have"),
    "explain": (_explain, "reduction_order", "what makes two results differ"),
    "decisions": (_decisions, "reduction_order", "which decisions noise flips"),
    "record": (_record, "none", "write what every equation computes"),
    "first_difference": (
        _first_difference,
        "reduction_order:granularity=element+ulp",
        "where a run here first differs from a recorded one",
    ),
    "invariance": (
        _invariance,
        "none",
        "whether a row's result depends on how the function is called",
    ),
    "tolerances": (
        _tolerances,
        "none",
        "which tests have a looser or tighter tolerance than measured; takes a folder",
    ),
    "devices": (
        _devices,
        "reduction_order:profile=collectives,collectives=sequential",
        "what it computes over meshes of devices that are not here",
    ),
    "audit": (_audit, "none", "what on a GPU will vary; needs no GPU"),
}


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(
        f"  {name:16} {about}" for name, (_, _, about) in COMMANDS.items()
    )
    parser = _Parser(
        prog="python -m prednet_jax.noise",
        description=f"{__doc__}\ncommands:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    parser.add_argument("function", metavar="MODULE:FUNCTION")
    parser.add_argument(
        "--args", metavar="FILE.npz", help="arguments; none if left out"
    )
    parser.add_argument(
        "--noise",
        help="the noise, such as reduction_order:granularity=element or ulp; default: "
        "reduction_order, for digits with stochastic_rounding, for first_difference of "
        "each element and with ulp",
    )
    parser.add_argument(
        "--draws",
        type=int,
        help="noisy runs; default 16; explain, invariance, localize, devices and "
        "first_difference 8",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the PRNG; default 0")
    parser.add_argument(
        "--failure", type=float, default=1e-6, help="tolerance: probability to fail"
    )
    parser.add_argument(
        "--parts",
        metavar="NAME,...",
        help="localize: effects of these scopes or paths, in place of a search",
    )
    parser.add_argument(
        "--labels",
        metavar="FILE.npz",
        help="decisions: of an evaluation set, whose answers the function returns",
    )
    parser.add_argument(
        "--batch",
        default="0",
        metavar="I,...",
        help="invariance: positions of the arguments with a batch axis 0; default 0",
    )
    parser.add_argument("--a", metavar="FILE.npz", help="explain: one result")
    parser.add_argument("--b", metavar="FILE.npz", help="explain: the other")
    parser.add_argument("--output", metavar="FILE.npz", help="record: what it writes")
    parser.add_argument(
        "--recording", metavar="FILE.npz", help="first_difference: what record wrote"
    )
    parser.add_argument(
        "--mesh",
        metavar="AXIS=SIZE,...[;...]",
        help="devices: sizes of the axes, several to compare; data=1,8,64",
    )
    parser.add_argument(
        "--specs",
        metavar="AXIS,...[;...]",
        help="devices: for each positional argument the mesh axes of its axes, - for "
        "none: -;data spreads the rows of the second",
    )
    parser.add_argument(
        "--gpu", default="h100", help="audit: which GPU, such as gtx1080; default h100"
    )
    parser.add_argument(
        "--devices", type=int, default=1, help="audit: number of GPUs; default 1"
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="audit: under --xla_gpu_deterministic_ops=true",
    )
    parser.add_argument(
        "--time_limit",
        type=float,
        default=600,
        help="audit: seconds for each compilation; default 600",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    options = _parser().parse_args(argv)
    ask, default, _ = COMMANDS[options.command]
    try:
        text = default if options.noise is None else options.noise
        spec = parse(text)
        if default == "none" and text != default:
            raise NoiseError(f"--noise={text}: expected no noise for {options.command}")
        args, kwargs = files.read("args", options.args) if options.args else ((), {})
        # What the user's code prints is no part of the answer.
        with contextlib.redirect_stdout(sys.stderr):
            # `tolerances` is asked about a folder of tests, and runs no function.
            fn: Callable = _tolerances
            if options.command != "tolerances":
                fn = _function(options.function)
                _check_call(fn, options, args, kwargs)
            answer = ask(Asked(fn, args, kwargs, spec, options))
    except NoiseError as error:
        print(f"python -m prednet_jax.noise: {_one_line(error)}", file=sys.stderr)
        return 2
    head = {"command": options.command, "function": options.function, "noise": text}
    if options.command == "audit":
        del head["noise"]
    if options.json:
        print(json.dumps(head | plain_data(answer.data), allow_nan=False))
    else:
        print(answer.text)
    return 0


def plain_data(value: Any) -> Any:
    """A report as JSON has it: lists, dictionaries, texts and finite numbers.

    Named tuples and dataclasses become dictionaries; NaN and infinities become None.
    """
    if hasattr(value, "to_json"):
        return plain_data(value.to_json())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        return {name: plain_data(getattr(value, name)) for name in fields}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain_data(x) for name, x in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain_data(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(x) for x in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain_data(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | None) else str(value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _function(name: str) -> Callable:
    """The function that MODULE:FUNCTION names."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise NoiseError(f"{name!r}: expected MODULE:FUNCTION, such as model:loss")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(module_name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise NoiseError(
            f"{name!r}: no module {module_name!r}: expected one in the current "
            "directory, or installed"
        )
    value: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            public = [n for n, x in vars(value).items() if callable(x) and n[0] != "_"]
            raise NoiseError(
                f"{name!r}: no {part!r} there: expected one of "
                f"{', '.join(public[:12]) or 'its functions'}"
            )
        value = getattr(value, part)
    if not callable(value):
        raise NoiseError(f"{name!r} is {type(value).__name__}: expected a function")
    return value


def _check_call(
    fn: Callable, options: argparse.Namespace, args: tuple, kwargs: dict[str, Any]
) -> None:
    """Refuses arguments that do not fit the signature of the function."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = "without --args"
        if options.args:
            given = (
                f"with --args={options.args}, which holds {len(args)} positional "
                f"arguments and the names {sorted(kwargs)}"
            )
        raise NoiseError(f"{options.function}{signature} {given}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
