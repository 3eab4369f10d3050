"""Runs the tools of noise from a shell, on a function in a Python file.

    python -m prednet_jax.noise coverage model:loss --args=batch.npz
    python -m prednet_jax.noise explain model:loss --args=x.npz --a=cpu.npz --b=gpu.npz
    python -m prednet_jax.noise compare_layers --help

MODULE is imported as `python -m` would import it, from the current directory first.
FILE.npz is what `numpy.savez` writes. Its arrays arr_0, arr_1, ... are the positional
arguments of the function, all others are keyword arguments by their names. Names with /
make dictionaries: params/Dense_0/kernel is params["Dense_0"]["kernel"]. Every argument
becomes an array that JAX traces. Bind Python numbers, texts and parameters that are not
in the file in MODULE: `forward = functools.partial(model.apply, params)`.
"""

import argparse
import contextlib
import dataclasses
import importlib
import inspect
import itertools
import json
import math
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax.sharding import PartitionSpec

import prednet_jax.noise as noise
from prednet_jax.noise.arguments import TOO_WIDE
from prednet_jax.noise.errors import NoiseError, check_int
from prednet_jax.noise.gpu.compilation import TIME_LIMIT, install
from prednet_jax.noise.questions import kept
from prednet_jax.noise.questions.leaves import named_leaves
from prednet_jax.noise.questions.sampling import BoundCall, reach_notes, with_routines


class Asked(NamedTuple):
    """The inputs of a command: a call, the noise, and the command line."""

    call: BoundCall
    spec: noise.NoiseSpec
    options: argparse.Namespace

    def of(self, tool: Callable, *about: Any, **options: Any) -> Any:
        """Returns the result of a tool, which takes the function, for the call."""
        answer = tool(self.call.fn, *about, **options)
        return answer(*self.call.args, **self.call.kwargs)

    def drawn(self, tool: Callable, *about: Any, **options: Any) -> Any:
        """Calls a tool that takes `draws`, and a PRNG key before the arguments."""
        options = {"draws": self.options.draws} | options
        key = jax.random.key(self.options.seed)
        answer = tool(self.call.fn, *about, **options)
        return answer(key, *self.call.args, **self.call.kwargs)


class Answer(NamedTuple):
    """The result of a command, where text and JSON do not come from one report."""

    text: Any
    data: Any


def _coverage(asked: Asked) -> Any:
    return asked.of(noise.coverage, asked.spec)


def _digits(asked: Asked) -> Any:
    return asked.drawn(noise.digits_table, asked.spec)


def _localize(asked: Asked) -> Any:
    parts = asked.options.parts and asked.options.parts.split(",")

    def tool(fn: Callable, draws: int) -> Callable:
        return noise.localize(fn, asked.spec, parts=parts, samples=draws)

    return asked.drawn(tool)


def _decisions(asked: Asked) -> Answer:
    file = asked.options.labels
    labels = None if file is None else _only_array("labels", file)
    report = asked.drawn(noise.decisions, asked.spec, labels=labels)
    return Answer(report, {"decisions": list(report), "evaluation": report.evaluation})


def _tolerance(asked: Asked) -> Answer:
    tolerances = asked.drawn(noise.tolerance, asked.spec, failure=asked.options.failure)
    notes = reach_notes(asked.call.reaches(with_routines(asked.spec)))
    text = "\n".join([noise.tolerance_table(tolerances), *notes])
    return Answer(text, {"leaves": dict(named_leaves(tolerances)), "notes": notes})


def _explain(asked: Asked) -> Any:
    shapes = asked.call.program().shapes.result()
    pair = (_result(n, getattr(asked.options, n), shapes) for n in ("a", "b"))
    return asked.drawn(noise.explain, *pair)


def _invariance(asked: Asked) -> Any:
    options = asked.options
    batch = options.batch.split(",")
    if not all(i.strip().isdecimal() for i in batch):
        raise NoiseError(f"--batch={options.batch}: expected positions, such as 0,2")
    about = {"batch": [*map(int, batch)], "draws": options.draws, "seed": options.seed}
    return asked.of(noise.invariance, **about)


def _devices(asked: Asked) -> Any:
    """Compares the results over a mesh with the results on one device."""
    sizes, in_specs = _on_mesh(asked.options.mesh, asked.options.specs)
    options = {"in_specs": in_specs, "spec": asked.spec}
    if any(len(several) > 1 for several in sizes.values()):
        table = {axis: n if len(n) > 1 else n[0] for axis, n in sizes.items()}
        return asked.drawn(noise.devices_table, mesh=table, **options)
    mesh = {axis: size for axis, (size,) in sizes.items()}
    key = jax.random.key(asked.options.seed)
    over, alone = (
        partial(noise.devices(asked.call.fn, mesh=each, **options), key)
        for each in (mesh, dict.fromkeys(mesh, 1))
    )
    pair = (asked.call._replace(fn=fn).result() for fn in (over, alone))
    on_one = asked._replace(call=asked.call._replace(fn=alone))
    return on_one.drawn(noise.explain, *pair)


def _record(asked: Asked) -> Answer:
    path, recording = asked.options.output, asked.of(noise.record)
    recording.save(path)
    return Answer(f"{recording}: {path}", {"recording": str(recording), "output": path})


def _first_difference(asked: Asked) -> Any:
    known = noise.load_recording(asked.options.recording)
    return asked.drawn(noise.first_difference, known, spec=asked.spec)


def _training(asked: Asked) -> Any:
    """Prints the band of a training, or compares recorded losses with it."""
    given, name = asked.call.result(), asked.options.function
    if not isinstance(given, tuple) or len(given) != 3:
        raise NoiseError(
            f"{name}: expected a function that gives (step, state, batches), as "
            f"noise.training takes them, not {type(given).__name__}"
        )
    updates = asked.options.updates or None
    options = {"updates": updates, "spec": asked.spec, "draws": asked.options.draws}
    run = noise.training(*given, **options)
    band = run(jax.random.key(asked.options.seed))
    file = asked.options.losses
    return band if file is None else band.compare(_only_array("losses", file))


def _curves(asked: Asked) -> Any:
    options = asked.options
    if options.function is None:
        files = {name: getattr(options, name) for name in ("a", "b")}
        if None in files.values():
            raise NoiseError(
                "curves: expected --a and --b, or a function that gives both"
            )
        pair: Any = [_only_array(name, file) for name, file in files.items()]
    else:
        pair = asked.call.result()
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise NoiseError(
            f"{options.function}: expected a function that gives two sets of curves "
            f"(a, b), not {type(pair).__name__}"
        )
    return noise.curves(*pair, paired=options.paired, margin=options.margin)


def _nan_rate(asked: Asked) -> Any:
    return asked.drawn(noise.nan_rate, asked.spec)


def _first_nan(asked: Asked) -> Answer:
    entry = asked.of(noise.first_nan)
    nothing = "no equation makes a NaN or an infinity"
    return Answer(entry or nothing, {"entry": entry})


def _cancellations(asked: Asked) -> Any:
    key = jax.random.key(asked.options.seed)
    options = {"spec": asked.spec, "draws": asked.options.draws, "key": key}
    return asked.of(noise.cancellations, **options)


def _compare_layers(asked: Asked) -> Any:
    pairs = [part.split("=") for part in (asked.options.names or "").split(",") if part]
    if any(len(pair) != 2 for pair in pairs):
        raise NoiseError(
            f"--names={asked.options.names}: expected names here and there, as in "
            "Dense_0=fc1,Dense_1=fc2"
        )
    about = {"names": dict(pairs), "spec": asked.spec}
    return asked.drawn(noise.compare_layers, asked.options.reference, **about)


def _compare_trees(asked: Asked) -> Any:
    return noise.compare_trees(asked.call.result(), asked.options.reference)


def _compare_logits(asked: Asked) -> Any:
    shapes = asked.call.program().shapes.result()
    pair = (_result(n, getattr(asked.options, n), shapes) for n in ("a", "b"))
    return asked.drawn(noise.compare_logits, *pair, spec=asked.spec)


def _audit(asked: Asked) -> Any:
    if asked.options.install:
        folder = install()
        return Answer(f"XLA's CUDA compiler is in {folder}", {"folder": str(folder)})
    options = {name: getattr(asked.options, name) for name in OF_AUDIT.split()}
    return asked.of(noise.audit, **options)


OF_AUDIT = "gpu devices deterministic time_limit"
# Name: default, which gives the type (...: the flag is required), and the purpose.
FLAGS: Mapping[str, tuple[Any, str]] = {
    "args": (None, "file of the arguments, FILE.npz; not needed without arguments"),
    "noise": (None, "the noise, such as ulp (docs/noise/noises.md lists them)"),
    "draws": (None, "number of noisy runs"),
    "seed": (0, "seed of the PRNG key"),
    "parts": (None, "scopes or paths whose effect is measured, as encoder,3:scan"),
    "labels": (None, "file of the right classes, FILE.npz, to measure the accuracy"),
    "failure": (1e-6, "probability that a test with the tolerance fails"),
    "batch": ("0", "positions of the arguments that have a batch axis 0, as 0,2"),
    "gpu": ("h100", "model of the GPU, such as gtx1080"),
    "devices": (1, "number of GPUs"),
    "deterministic": (False, "compile under --xla_gpu_deterministic_ops=true"),
    "time_limit": (TIME_LIMIT, "seconds that each compilation may take"),
    "install": (False, "install the compiler for this version of JAX, and end"),
    "loop_limit": (
        100,
        "a while loop may take this many times its steps without noise",
    ),
    "a": (..., "file of one result, FILE.npz (or of curves, [n, T])"),
    "b": (..., "file of the other result, FILE.npz"),
    "losses": (None, "file of losses [T], FILE.npz, that are compared with the band"),
    "updates": (0, "updates of the training; 0 means all batches of a list, else 100"),
    "paired": (False, "curve i has the same seed on both sides"),
    "margin": (0.02, "relative change of the final loss that counts as no change"),
    "output": (..., "file to write, FILE.npz"),
    "recording": (..., "file that the command record wrote"),
    "reference": (..., "file of the original's arrays by name, FILE.npz"),
    "names": (None, "pairs of names that do not agree, as Dense_0=fc1,Dense_1=fc2"),
    "mesh": (
        ...,
        "sizes of the mesh's axes, as data=64 or 'data=8;model=2'; data=1,8,64 gives a "
        "table of three sizes",
    ),
    "specs": (
        None,
        "mesh axes of each axis of each positional argument, - for none, as '-;data', "
        "which spreads the rows of the second argument",
    ),
}


class Command(NamedTuple):
    """A question: its name, the function's inputs, and its own flags.

    Commands whose `noise` and `draws` are not set take no such flags.
    """

    ask: Callable[[Asked], Any]
    about: str
    noise: str = ""
    draws: int = 0
    flags: str = ""


_O = "reduction_order"
_CHAINED = "reduction_order:granularity=element,chain=terms+ulp"
_OF_DEVICES = "reduction_order:profile=collectives,collectives=sequential"
_ELSEWHERE = "reduction_order:granularity=element+ulp"
COMMANDS: Mapping[str, Command] = {
    "coverage": Command(
        _coverage,
        "list the equations that noise reaches and those that it does not",
        _O,
    ),
    "localize": Command(
        _localize, "list the lines whose noise moves the result most", _O, 8, "parts"
    ),
    "digits": Command(
        _digits, "count the significant decimal digits of each result", _ELSEWHERE, 16
    ),
    "tolerance": Command(
        _tolerance, "recommend the rtol and atol of a test", _CHAINED, 16, "failure"
    ),
    "explain": Command(_explain, "find what makes two results differ", "", 8, "a b"),
    "decisions": Command(
        _decisions, "list the decisions that noise flips", _ELSEWHERE, 16, "labels"
    ),
    "record": Command(
        _record, "write the result of every equation to a file", flags="output"
    ),
    "first_difference": Command(
        _first_difference,
        "find where a run here first differs from a recorded one",
        *(_ELSEWHERE, 8, "recording"),
    ),
    "compare_layers": Command(
        _compare_layers,
        "find the first layer of a port whose difference is more than noise",
        *(_ELSEWHERE, 8, "reference names"),
    ),
    "compare_trees": Command(
        _compare_trees,
        "pair the weights that the function returns with those of a reference",
        flags="reference",
    ),
    "compare_logits": Command(
        _compare_logits,
        "compare two results that are logits: ratios, KL divergence and flips",
        *(_ELSEWHERE, 8, "a b"),
    ),
    "invariance": Command(
        _invariance,
        "find whether the result of a row depends on the other rows and the batch size",
        *("", 8, "batch"),
    ),
    "tolerances": Command(
        lambda asked: kept.compare(asked.options.function),
        "list the tests in a folder whose tolerance is looser or tighter than measured",
    ),
    "devices": Command(
        _devices,
        "compute over a mesh of devices that are not here, and compare",
        *(_OF_DEVICES, 8, "mesh specs"),
    ),
    "training": Command(
        _training,
        "compute the band in which the losses of equal trainings lie; FUNCTION returns "
        "(step, state, batches)",
        *(_ELSEWHERE, 8, "losses updates"),
    ),
    "curves": Command(
        _curves,
        "test whether two sets of recorded curves differ",
        flags="a b paired margin",
    ),
    "first_nan": Command(
        _first_nan, "find the first equation that makes a NaN or an infinity"
    ),
    "nan_rate": Command(
        _nan_rate, "measure how often noise makes a NaN", _ELSEWHERE, 16
    ),
    "cancellations": Command(
        _cancellations, "list the subtractions and sums that lose digits", _ELSEWHERE, 4
    ),
    "audit": Command(
        _audit,
        "list what will vary on a GPU; needs no GPU",
        flags=f"{OF_AUDIT} install",
    ),
}
# For a folder of tests, which runs no function; for recorded curves, which need none.
_OF_FOLDER, _OF_FILES = "tolerances", "curves"


class _Parser(argparse.ArgumentParser):
    """Parses flags, with errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _example(name: str, command: Command) -> str:
    """Returns the arguments of a typical call: a function, and the required flags."""
    if name == _OF_FOLDER:
        return "tests/"
    needed = [flag for flag in command.flags.split() if FLAGS[flag][0] is ...]
    values = {flag: f"{flag}.npz" for flag in needed} | {"mesh": "data=8"}
    words = [f"--{flag}={values[flag]}" for flag in needed]
    return " ".join(
        [*([] if name == _OF_FILES else ["model:loss", "--args=x.npz"]), *words]
    )


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m prednet_jax.noise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(
            name,
            help=command.about,
            description=(
                f"{command.about[0].upper()}{command.about[1:]}.\n\n"
                f"    python -m prednet_jax.noise {name} {_example(name, command)}"
            ),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        about = "FOLDER" if name == _OF_FOLDER else "MODULE:FUNCTION"
        optional = name == _OF_FILES or "install" in command.flags.split()
        nargs: Any = "?" if optional else None
        subparser.add_argument("function", metavar=about, nargs=nargs)
        own: dict[str, Any] = {} if name == _OF_FOLDER else {"args": None}
        own |= {"noise": command.noise} if command.noise else {}
        own |= {"draws": command.draws, "seed": 0} if command.draws else {}
        own |= {"loop_limit": 100} if command.draws else {}
        for flag in (*own, *command.flags.split()):
            default, about = FLAGS[flag]
            default = own.get(flag, default)
            if default is False:
                subparser.add_argument(f"--{flag}", action="store_true", help=about)
                continue
            said = default not in (None, ...)
            subparser.add_argument(
                f"--{flag}",
                type=type(default) if said else str,
                default=default if said else None,
                required=default is ... and name != _OF_FILES,
                help=f"{about} (default: {default})" if said else about,
            )
        about = "print one JSON object instead of text"
        subparser.add_argument("--json", action="store_true", help=about)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status."""
    parser = _parser()
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        accepted = sorted(vars(options).keys() - {"command", "function"})
        parser.error(f"{unknown[0]}: {options.command} takes --{', --'.join(accepted)}")
    text = getattr(options, "noise", "none")
    try:
        if "draws" in options:
            check_int("--draws", options.draws, 1, 1 << 20)
            check_int("--seed", options.seed, -(2**63), 2**63 - 1)
        spec = noise.parse(text)
        # Output of the user's code is not part of the answer.
        with contextlib.redirect_stdout(sys.stderr):
            call = BoundCall(kept.compare, (), {})
            if options.command != _OF_FOLDER and options.function is not None:
                call = _call(options.function, options.args)
            elif options.command == "audit" and not options.install:
                raise NoiseError("audit: expected MODULE:FUNCTION, or --install")
            with noise.loop_limit(getattr(options, "loop_limit", 100)):
                answer = COMMANDS[options.command].ask(Asked(call, spec, options))
    except NoiseError as error:
        one_line = " ".join(str(error).split())
        print(f"python -m prednet_jax.noise: {one_line}", file=sys.stderr)
        return 2
    shown, data = answer if isinstance(answer, Answer) else (answer, answer)
    if options.json:
        head = {"command": options.command, "function": options.function}
        if options.command != "audit":
            head["noise"] = text
        print(json.dumps(head | plain_data(data), allow_nan=False))
    else:
        print(shown)
    return 0


def _read(flag: str, file: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arrays of --flag=file: by position, and by name, nested."""
    try:
        with np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
    except Exception:
        # NumPy, zipfile and zlib have different exceptions.
        raise NoiseError(
            f"--{flag}={file}: expected a file of arrays as numpy.savez writes it"
        ) from None
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc" or array.dtype in TOO_WIDE:
            raise NoiseError(
                f"--{flag}={file}: {name} is of type {array.dtype}: expected numbers; "
                "save bfloat16 as float32 and convert it in the function"
            )
    count = next(i for i in itertools.count() if f"arr_{i}" not in arrays)
    positional = tuple(arrays.pop(f"arr_{i}") for i in range(count))
    nested: dict[str, Any] = {}
    for name, array in arrays.items():
        *around, last = name.split("/")
        branch: Any = nested
        for part in around:
            branch = branch.setdefault(part, {}) if isinstance(branch, dict) else None
        if not isinstance(branch, dict) or last in branch:
            raise NoiseError(
                f"--{flag}={file}: {name} is inside of another array or around one: "
                "expected names of which none is a folder of another"
            )
        branch[last] = array
    return positional, nested


def _only_array(flag: str, file: str) -> np.ndarray:
    """Returns the one array of --flag=file."""
    held, named = _read(flag, file)
    several = [*held, *named.values()]
    if len(several) != 1:
        raise NoiseError(f"--{flag}={file}: {len(several)} arrays: expected one")
    return several[0]


def _result(flag: str, file: str, shapes: Any) -> Any:
    """Returns a result of the shapes given: leaves by position, or nested by name."""
    positional, named = _read(flag, file)
    leaves, structure = jax.tree.flatten(shapes)
    given: Any = jax.tree.structure(named)
    if not positional and given == structure:
        return named
    if named or len(positional) != len(leaves):
        raise NoiseError(
            f"--{flag}={file}: {len(positional)} arrays arr_0, arr_1, ... and "
            f"{len(named)} with names: expected the {len(leaves)} leaves of the result "
            "in order, or of a dict by name"
        )
    return jax.tree.unflatten(structure, positional)


def plain_data(value: Any) -> Any:
    """Converts a report to JSON's types; NaN and infinities become None."""
    if hasattr(value, "to_json"):
        value = value.to_json()
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, Mapping):
        return {str(name): plain_data(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _call(name: str, file: str | None) -> BoundCall:
    """Returns the function MODULE:FUNCTION with the arrays of a file as arguments."""
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in f"{module}.{attribute}".split(".")):
        raise NoiseError(
            f"{name!r}: expected MODULE:FUNCTION, such as model:loss of ./model.py"
        )
    try:
        fn: Any = importlib.import_module(module)
    except SyntaxError as error:
        raise NoiseError(f"{name!r}: {error}; expected Python") from None
    except ModuleNotFoundError as error:
        # Not a missing module that this one imports.
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise NoiseError(
            f"{name!r}: {error}: expected one in the current directory, or installed"
        ) from None
    for part in attribute.split("."):
        if not hasattr(fn, part):
            there = [n for n, x in vars(fn).items() if callable(x) and n[0] != "_"]
            raise NoiseError(
                f"{name!r}: no {part!r} there; expected one of {', '.join(there[:12])}"
            )
        fn = getattr(fn, part)
    if not callable(fn):
        raise NoiseError(f"{name!r} is {type(fn).__name__}: expected a function")
    args, kwargs = _read("args", file) if file else ((), {})
    signature = None
    with contextlib.suppress(ValueError):  # Some of C have no signature.
        signature = inspect.signature(fn)
    try:
        if signature is not None:
            signature.bind(*args, **kwargs)
    except TypeError as error:
        given = f"with the names {sorted(kwargs)} of --args={file}"
        raise NoiseError(
            f"{name}{signature} {given if file else 'without --args'}: {error}"
        ) from None
    return BoundCall(fn, args, kwargs)


def _on_mesh(mesh: str, specs: str | None) -> tuple[dict[str, tuple[int, ...]], Any]:
    """Returns a mesh and `in_specs` from the command line.

    `mesh` has sizes by axis, as `data=8;model=2` or `data=1,8`; `specs` has for each
    argument the mesh axes of its axes, as `-;data,-;data+model`, or is None.
    """
    axes = [part.partition("=") for part in mesh.split(";")]
    sizes = {axis.strip(): n.split(",") for axis, _, n in axes}
    whole = all(n.strip().isdecimal() for each in sizes.values() for n in each)
    counts = {axis: tuple(map(int, each)) for axis, each in sizes.items() if whole}
    if len(counts) < len(axes):
        raise NoiseError(
            f"--mesh={mesh}: expected sizes of axes, each once, as --mesh=data=8 or "
            "--mesh='data=8;model=2'"
        )
    if specs is None:
        return counts, None

    def entry(name: str) -> Any:
        names = tuple(part.strip() for part in name.split("+"))
        return None if names in (("-",), ("",)) else names

    return counts, tuple(
        PartitionSpec(*map(entry, spec.split(","))) for spec in specs.split(";")
    )


if __name__ == "__main__":
    # Python's own handler would wait for a running program to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
