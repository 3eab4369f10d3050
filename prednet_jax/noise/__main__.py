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
import io
import json
import os
import pathlib
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import prednet_jax.noise as noise
from prednet_jax.noise.archives import bound_call
from prednet_jax.noise.commands import COMMANDS, Command, CommandContext, CommandResult
from prednet_jax.noise.errors import NoiseError, check_int
from prednet_jax.noise.gpu.compilation import TIME_LIMIT
from prednet_jax.noise.questions import kept
from prednet_jax.noise.questions.sampling import BoundCall
from prednet_jax.noise.questions.tables import plain_data

# The command for a folder of tests, and the command for recorded curves, which needs no
# function.
_OF_FOLDER, _OF_FILES = "tolerances", "curves"
_FUNCTION = "module and function in it: model:loss is the function loss of model.py"
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
        example = f"python -m prednet_jax.noise {name} {_example(name, command)}"
        subparser = commands.add_parser(
            name,
            help=command.about,
            description=f"{command.about}\n\n    {example}",
            epilog="docs/noise/which_tool.md names the page of each command.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        about = "FOLDER" if name == _OF_FOLDER else "MODULE:FUNCTION"
        optional = name == _OF_FILES or "install" in command.flags
        nargs: Any = "?" if optional else None
        purpose = "folder of tests" if name == _OF_FOLDER else _FUNCTION
        subparser.add_argument("function", metavar=about, nargs=nargs, help=purpose)
        own: dict[str, Any] = {} if name == _OF_FOLDER else {"args": None}
        own |= {"noise": command.noise} if command.noise else {}
        if command.draws:
            own |= {"draws": command.draws, "seed": 0, "loop_limit": 100}
        for flag in dict.fromkeys((*own, *command.flags.split())):
            default, about = FLAGS[flag]
            default = own.get(flag, default)
            if default is False:
                subparser.add_argument(f"--{flag}", action="store_true", help=about)
                continue
            shown = default not in (None, ...)
            subparser.add_argument(
                f"--{flag}",
                type=type(default) if shown else str,
                default=default if shown else None,
                required=default is ... and name != _OF_FILES,
                help=f"{about} (default: {default})" if shown else about,
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
                call = bound_call(options.function, options.args)
            elif options.command == "audit" and not options.install:
                raise NoiseError("audit: expected MODULE:FUNCTION, or --install")
            with noise.loop_limit(getattr(options, "loop_limit", 100)):
                answer = COMMANDS[options.command].ask(
                    CommandContext(call, spec, options)
                )
    except NoiseError as error:
        one_line = " ".join(str(error).split())
        print(f"{parser.prog}: {one_line}", file=sys.stderr)
        return 2
    except Exception as error:
        # The user's frames alone: JAX leaves out its own.
        package = str(pathlib.Path(__file__).parent)
        libraries = package, sys.prefix, sys.base_prefix
        told = traceback.TracebackException.from_exception(error)
        calls = [f for f in told.stack if not f.filename.startswith(package)]
        if all(f.filename.startswith((*libraries, "<")) for f in calls):
            raise
        told.stack = traceback.StackSummary.from_list(calls)
        print("".join(told.format()), end="", file=sys.stderr)
        return 1
    shown, data = answer if isinstance(answer, CommandResult) else (answer, answer)
    if options.json:
        head = {"command": options.command, "function": options.function}
        if options.command != "audit":
            head["noise"] = text
        shown = json.dumps(head | plain_data(data), allow_nan=False)
    try:
        print(shown, flush=True)
    except BrokenPipeError:  # Nobody reads the output any more, as in `| head`.
        os._exit(128 + signal.SIGPIPE)
    except OSError as error:  # Such as a full disk.
        print(f"{parser.prog}: output: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(1)
    return 0


if __name__ == "__main__":
    # The name of a file need not be text in the encoding of the terminal.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Python's own handler would wait for a running program to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
