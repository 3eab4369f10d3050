"""Defines the commands of `python -m prednet_jax.noise`, one for each question.

A command is a function of a `CommandContext`; its docstring is its help, and its
decorator names its tool, whose options are its flags. `FLAGS` describes the flags, and
`READERS` turn their texts into values.
"""

import argparse
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

import prednet_jax.noise as noise
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.gpu.compilation import install
from prednet_jax.noise.leaves import named_leaves, rebuilt
from prednet_jax.noise.questions import kept
from prednet_jax.noise.questions.archives import bound_call, read_arguments
from prednet_jax.noise.questions.devices import SUMS_BY_RANK
from prednet_jax.noise.questions.sampling import BoundCall, reach_notes, with_routines
from prednet_jax.noise.specs import default, rounding
from prednet_jax.noise.types import Function, PyTree


class CommandContext:
    """The inputs of a command, read from the command line when they are needed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    @functools.cached_property
    def call(self) -> BoundCall:
        """The function that is named, with its arguments."""
        return bound_call(self.options.target, self.options.args)

    @property
    def spec(self) -> noise.NoiseSpec:
        """The noise that --noise gives."""
        return noise.parse(self.options.noise)

    @property
    def key(self) -> jax.Array:
        """The PRNG key that --seed gives."""
        return jax.random.key(self.options.seed)

    def value(self, flag: str) -> Any:
        """Returns the value of a flag, of a file its content."""
        option = getattr(self.options, flag)
        read = READERS.get(flag)
        return option if read is None or option is None else read(self, flag, option)

    def tell(self, *first: jax.Array, **options: PyTree) -> Any:
        """Returns the answer of the command's tool for the call, with the flags.

        `first` come before the arguments of the call, as a PRNG key does.
        """
        command = COMMANDS[self.options.command]
        accepted = inspect.signature(command.tool).parameters
        flags = {flag: self.value(flag) for flag in command.flags if flag in accepted}
        flags |= {"spec": self.spec} if "spec" in accepted else {}
        tool = command.tool(self.call.fn, **flags | options)
        return self.call.calling(tool).result(*first)


class CommandResult(NamedTuple):
    """The result of a command, where text and JSON do not come from one report."""

    text: object
    data: object


Ask = Callable[[CommandContext], object]
FUNCTION, FOLDER = "MODULE:FUNCTION", "FOLDER"


class Command(NamedTuple):
    """A question.

    Attributes:
        ask: the function that answers; its docstring is the help.
        tool: the tool that it uses.
        target: what the question is about, `FUNCTION` or `FOLDER`.
        optional: whether the target may be left out.
        flags: the default of each flag, which gives its type. None is a text without a
            default, and `...` a text that is required.
    """

    ask: Ask
    tool: Function
    target: str
    optional: bool
    flags: Mapping[str, Any]


COMMANDS: dict[str, Command] = {}


# What the flags mean.
FLAGS: Mapping[str, str] = {
    "args": "file of the arguments, FILE.npz; not needed without arguments",
    "noise": "the noise, such as ulp (docs/noise/noises.md lists them)",
    "draws": "number of noisy runs",
    "seed": "seed of the PRNG key",
    "parts": "scopes or paths whose effect is measured, as encoder,3:scan",
    "labels": "file of the right classes, FILE.npz, to measure the accuracy",
    "failure": "probability that a test with the tolerance fails",
    "batch": "positions of the arguments that have a batch axis 0, as 0,2",
    "gpu": "model of the GPU, such as gtx1080",
    "devices": "number of GPUs",
    "deterministic": "compile under --xla_gpu_deterministic_ops=true",
    "time_limit": "seconds that each compilation may take",
    "install": "install the compiler for this version of JAX, and end",
    "loop_limit": "a while loop may take this many times its steps without noise",
    "a": "file of one result, FILE.npz (or of curves, [n, T])",
    "b": "file of the other result, FILE.npz",
    "losses": "file of losses [T], FILE.npz, that are compared with the band",
    "updates": "updates of the training; 0 means all batches of a list, else 100",
    "paired": "curve i has the same seed on both sides",
    "margin": "relative change of the final loss that counts as no change",
    "output": "file to write, FILE.npz",
    "recording": "file that the command record wrote",
    "reference": "file of the original's arrays by name, FILE.npz",
    "names": "pairs of names that do not agree, as Dense_0=fc1,Dense_1=fc2",
    "mesh": "sizes of the mesh's axes, as data=64 or 'data=8;model=2'; data=1,8,64 "
    "gives a table of three sizes",
    "specs": "mesh axes of each axis of each positional argument, - for none, as "
    "'-;data', which spreads the rows of the second argument",
}
_DEFAULT, _ROUNDING, _CHAINED = map(
    noise.format, (default(), rounding(), kept.default_noise())
)
_BY_RANK = noise.format(SUMS_BY_RANK)
_TILES = "reduction_order"


def _command(
    tool: Function, *, target: str = FUNCTION, optional: bool = False, **flags: object
) -> Callable[[Ask], Ask]:
    """Registers a function as a command for a tool.

    Its flags are the options of the tool that `FLAGS` describes, with the defaults of
    the tool, and `flags` with their defaults, which replace the tool's.
    """
    parameters = inspect.signature(tool).parameters
    own = {name: p.default for name, p in parameters.items() if name in FLAGS}
    own = {n: ... if x is inspect.Parameter.empty else x for n, x in own.items()}
    own |= {"noise": _DEFAULT} if "spec" in parameters else {}
    own |= flags
    of_function = {"args": None} if target == FUNCTION else {}
    of_noise = {"seed": 0, "loop_limit": 100} if "draws" in own else {}

    def register(ask: Ask) -> Ask:
        name = ask.__name__.removeprefix("_")
        every = of_function | own | of_noise
        COMMANDS[name] = Command(ask, tool, target, optional, every)
        return ask

    return register


@_command(noise.coverage, noise=_TILES)
def _coverage(context: CommandContext) -> object:
    """Lists the equations that noise reaches and those that it does not."""
    return context.tell()


@_command(noise.localize, noise=_TILES, draws=8)
def _localize(context: CommandContext) -> object:
    """Lists the lines whose noise moves the result most."""
    return context.tell(context.key, samples=context.options.draws)


@_command(noise.digits_table, noise=_ROUNDING)
def _digits(context: CommandContext) -> object:
    """Counts the significant decimal digits of each result."""
    return context.tell(context.key)


@_command(noise.tolerance, noise=_CHAINED)
def _tolerance(context: CommandContext) -> CommandResult:
    """Recommends the rtol and atol of a test."""
    tolerances = context.tell(context.key)
    notes = reach_notes(context.call.reaches(with_routines(context.spec)))
    text = "\n".join([noise.tolerance_table(tolerances), *notes])
    leaves = dict(named_leaves(tolerances))
    return CommandResult(text, {"leaves": leaves, "notes": notes})


@_command(noise.explain)
def _explain(context: CommandContext) -> object:
    """Finds what makes two results differ."""
    return context.tell(context.key)


@_command(noise.decisions)
def _decisions(context: CommandContext) -> object:
    """Lists the decisions that noise flips."""
    return context.tell(context.key)


@_command(noise.record, output=...)
def _record(context: CommandContext) -> CommandResult:
    """Writes the result of every equation to a file."""
    recording = context.tell()
    path, text = context.options.output, str(recording)
    recording.save(path)
    return CommandResult(f"{text}: {path}", {"recording": text, "output": path})


@_command(noise.first_difference)
def _first_difference(context: CommandContext) -> object:
    """Finds where a run here first differs from a recorded one."""
    return context.tell(context.key)


@_command(noise.compare_layers)
def _compare_layers(context: CommandContext) -> object:
    """Finds the first layer of a port whose difference is more than noise."""
    return context.tell(context.key)


@_command(noise.compare_trees)
def _compare_trees(context: CommandContext) -> object:
    """Pairs the weights that the function returns with those of a reference."""
    return noise.compare_trees(context.call.result(), context.options.reference)


@_command(noise.compare_logits)
def _compare_logits(context: CommandContext) -> object:
    """Compares two results that are logits: ratios, KL divergence and flips."""
    return context.tell(context.key)


@_command(noise.invariance, batch="0")
def _invariance(context: CommandContext) -> object:
    """Finds whether the result of a row depends on other rows and the batch size."""
    return context.tell()


@_command(kept.compare, target=FOLDER)
def _tolerances(context: CommandContext) -> object:
    """Lists tests of a folder whose tolerance is looser or tighter than measured."""
    return kept.compare(context.options.target)


@_command(noise.devices, noise=_BY_RANK, draws=8, specs=None)
def _devices(context: CommandContext) -> object:
    """Computes over a mesh of devices that are not here, and compares."""
    sizes, in_specs = _on_mesh(context.options.mesh, context.options.specs)
    options: dict[str, Any] = {"in_specs": in_specs, "spec": context.spec}
    fn, key, draws = context.call.fn, context.key, context.options.draws
    if any(len(counts) > 1 for counts in sizes.values()):
        table = {axis: n if len(n) > 1 else n[0] for axis, n in sizes.items()}
        compare = noise.devices_table(fn, mesh=table, draws=draws, **options)
        return context.call.calling(compare).result(key)
    mesh = {axis: size for axis, (size,) in sizes.items()}

    def on(mesh: Mapping[str, int]) -> BoundCall:
        run = noise.devices(fn, mesh=mesh, **options)
        return context.call.calling(functools.partial(run, key))

    over, alone = on(mesh), on(dict.fromkeys(mesh, 1))
    tool = noise.explain(alone.fn, over.result(), alone.result(), draws=draws)
    return alone.calling(tool).result(key)


@_command(noise.training, updates=0, losses=None)
def _training(context: CommandContext) -> object:
    """Computes the band of losses of equal trainings, or compares losses with it.

    The function returns (step, state, batches).
    """
    # A wrong noise is refused before the function runs.
    spec, options = context.spec, context.options
    parts = _several(context, 3, "(step, state, batches), as noise.training takes them")
    about = {"updates": options.updates or None, "draws": options.draws}
    band = noise.training(*parts, spec=spec, **about)(context.key)
    losses = context.value("losses")
    return band if losses is None else band.compare(losses)


@_command(noise.curves, optional=True, a=None, b=None)
def _curves(context: CommandContext) -> object:
    """Tests whether two sets of recorded curves differ.

    Files hold the curves, or a function gives both sets:

        python -m prednet_jax.noise curves --a=mine.npz --b=theirs.npz
    """
    options = context.options
    if options.target is not None:
        pair = _several(context, 2, "two sets of curves (a, b)")
    elif None in (options.a, options.b):
        raise NoiseError("curves: expected --a and --b, or a function that gives both")
    else:
        pair = [_only_array(context, n, getattr(options, n)) for n in ("a", "b")]
    return noise.curves(*pair, paired=options.paired, margin=options.margin)


@_command(noise.first_nan)
def _first_nan(context: CommandContext) -> CommandResult:
    """Finds the first equation that makes a NaN or an infinity."""
    entry = context.tell()
    nothing = "no equation makes a NaN or an infinity"
    return CommandResult(entry or nothing, {"entry": entry})


@_command(noise.nan_rate, noise=_ROUNDING)
def _nan_rate(context: CommandContext) -> object:
    """Measures how often noise makes a NaN."""
    return context.tell(context.key)


@_command(noise.cancellations)
def _cancellations(context: CommandContext) -> object:
    """Lists the subtractions and sums that lose digits."""
    return context.tell(key=context.key)


@_command(noise.audit, optional=True, install=False)
def _audit(context: CommandContext) -> object:
    """Lists what will vary on a GPU; needs no GPU."""
    if not context.options.install:
        if context.options.target is None:
            raise NoiseError("audit: expected MODULE:FUNCTION, or --install")
        return context.tell()
    folder = install()
    return CommandResult(f"XLA's CUDA compiler is in {folder}", {"folder": str(folder)})


def _several(context: CommandContext, count: int, what: str) -> Sequence[PyTree]:
    """Returns what the function gives, if it gives so many results."""
    result, named = context.call.result(), context.options.target
    kind, is_sequence = type(result).__name__, isinstance(result, tuple | list)
    kind += f" of {len(result)}" if is_sequence else ""
    if not is_sequence or len(result) != count:
        raise NoiseError(f"{named}: expected a function that gives {what}, not {kind}")
    return result


def _only_array(context: CommandContext, flag: str, file: str) -> np.ndarray:
    """Returns the one array of --flag=file."""
    positional, named = read_arguments(flag, file)
    arrays = [*positional, *named.values()]
    if len(arrays) != 1:
        raise NoiseError(f"--{flag}={file}: {len(arrays)} arrays: expected one")
    return arrays[0]


def _result(context: CommandContext, flag: str, file: str) -> PyTree:
    """Returns a result of the function: leaves by position, or nested by name."""
    shapes = context.call.program.shapes.result()
    positional, named = read_arguments(flag, file)
    leaves, names = (
        {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in paths}
        for paths, _ in map(jax.tree_util.tree_flatten_with_path, (named, shapes))
    )
    if not positional and leaves.keys() == names.keys():
        return rebuilt(shapes, [leaves[name] for name in names])
    count = len(jax.tree.leaves(shapes))
    if named or len(positional) != count:
        raise NoiseError(
            f"--{flag}={file}: {len(positional) + len(named)} arrays: expected one for "
            f"each of the {count} arrays of the result: arr_0, arr_1, ... in order, or "
            "their names, such as encoder/w"
        )
    return rebuilt(shapes, positional)


def _positions(context: CommandContext, flag: str, text: str) -> list[int]:
    batch = text.split(",")
    if not all(i.strip().isdecimal() for i in batch):
        raise NoiseError(f"--{flag}={text}: expected positions, such as 0,2")
    return [*map(int, batch)]


def _pairs(context: CommandContext, flag: str, text: str) -> dict[str, str]:
    pairs = [part.split("=") for part in text.split(",") if part]
    if any(len(pair) != 2 for pair in pairs):
        raise NoiseError(
            f"--{flag}={text}: expected names here and there, as in "
            "Dense_0=fc1,Dense_1=fc2"
        )
    return dict(pairs)


# How the texts of flags are read; all others are values as they are.
READERS: Mapping[str, Callable[[CommandContext, str, str], Any]] = {
    "a": _result,
    "b": _result,
    "batch": _positions,
    "labels": _only_array,
    "losses": _only_array,
    "names": _pairs,
    "parts": lambda context, flag, text: text.split(","),
    "recording": lambda context, flag, file: noise.load_recording(file),
}


def _on_mesh(
    mesh: str, specs: str | None
) -> tuple[dict[str, tuple[int, ...]], tuple | None]:
    """Returns a mesh and `in_specs` from the command line.

    `mesh` has sizes by axis, as `data=8;model=2` or `data=1,8`; `specs` has for each
    argument the mesh axes of its axes, as `-;data,-;data+model`, or is None.
    """
    axes = [part.partition("=") for part in mesh.split(";")]
    sizes = {axis.strip(): n.split(",") for axis, _, n in axes}
    valid = all(n.strip().isdecimal() for each in sizes.values() for n in each)
    counts = {axis: tuple(map(int, each)) for axis, each in sizes.items() if valid}
    if len(counts) < len(axes):
        raise NoiseError(
            f"--mesh={mesh}: expected sizes of axes, each once, as --mesh=data=8 or "
            "--mesh='data=8;model=2'"
        )
    if specs is None:
        return counts, None

    def entry(name: str) -> tuple[str, ...] | None:
        names = tuple(part.strip() for part in name.split("+"))
        return None if names in (("-",), ("",)) else names

    return counts, tuple(
        PartitionSpec(*map(entry, spec.split(","))) for spec in specs.split(";")
    )
