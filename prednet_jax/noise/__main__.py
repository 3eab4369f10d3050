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
import inspect
import json
import os
import pathlib
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

if __name__ == "__main__":
    # Imports take long, and Python's own handler would wait for a running program.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

from prednet_jax.noise.errors import (
    NoiseError,
    check_draws,
    check_int,
    no_backend,
    open_streams,
)


def _say(text: str) -> None:
    """Writes a text on stderr; a full one does not change the exit status."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


if __name__ == "__main__":
    open_streams()
try:
    import prednet_jax.noise as noise
    from prednet_jax.noise.commands import (
        COMMANDS,
        FLAGS,
        FOLDER,
        FUNCTION,
        Command,
        CommandContext,
        CommandResult,
    )
    from prednet_jax.noise.tables import plain_data
except ValueError as error:  # JAX reads its environment when it is imported.
    if __name__ != "__main__" or not (line := no_backend(error)):
        raise
    _say(f"python -m prednet_jax.noise: {line}\n")
    sys.exit(2)

_TARGETS = {
    FUNCTION: "module and function in it: model:loss is the function loss of model.py",
    FOLDER: "folder of tests",
}


class _Parser(argparse.ArgumentParser):
    """Parses flags, with errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def _example(name: str, command: Command) -> str:
    """Returns a typical call: the function or folder, and the required flags."""
    words = ["tests/"] if command.target == FOLDER else ["model:loss", "--args=x.npz"]
    for flag, default in command.flags.items():
        value = "data=8" if flag == "mesh" else f"{flag}.npz"
        words += [f"--{flag}={value}"] * (default is ...)
    return " ".join(["python -m prednet_jax.noise", name, *words])


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m prednet_jax.noise",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        about = inspect.getdoc(command.ask) or ""
        subparser = commands.add_parser(
            name,
            help=about.partition("\n")[0],
            description=f"{about}\n\n    {_example(name, command)}",
            epilog="docs/noise/which_tool.md names the page of each command.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        subparser.add_argument(
            "target",
            metavar=command.target,
            nargs="?" if command.optional else None,
            help=_TARGETS[command.target],
        )
        for flag, default in command.flags.items():
            about, shown = FLAGS[flag], default not in (None, ...)
            if default is False:
                subparser.add_argument(f"--{flag}", action="store_true", help=about)
                continue
            subparser.add_argument(
                f"--{flag}",
                type=type(default) if shown else str,
                default=default if shown else None,
                required=default is ...,
                help=f"{about} (default: {default})" if shown else about,
            )
        about = "print one JSON object instead of text"
        subparser.add_argument("--json", action="store_true", help=about)
    return parser


# Beginnings of the files that are not the user's.
_PACKAGE = str(pathlib.Path(__file__).parent)
_LIBRARIES = _PACKAGE, sys.prefix, sys.base_prefix, "<"


def _outside(told: traceback.TracebackException) -> list[traceback.FrameSummary]:
    """Returns the calls outside of this package; JAX leaves out its own."""
    return [f for f in told.stack if not f.filename.startswith(_PACKAGE)]


def _correctable(error: Exception, target: str) -> str | None:
    """Returns the line about an error that the user can correct, or None.

    An example is a library's function that is called with a wrong type.
    """
    if isinstance(error, NoiseError):
        return str(error)
    if line := no_backend(error):
        return line
    name = target.partition(":")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or "<built in>"
    calls = _outside(traceback.TracebackException.from_exception(error))
    is_standard = name.partition(".")[0] in sys.stdlib_module_names
    own = not is_standard and any(f.filename == file for f in calls)
    foreign = name in sys.modules and file.startswith(_LIBRARIES)
    inside = all(f.filename.startswith(_LIBRARIES) for f in calls)
    if not (isinstance(error, TypeError) and inside and foreign) or own:
        return None
    why = " ".join(str(error).split())[:200]
    return (
        f"{target}: {type(error).__name__}: {why}; expected a function of arrays that "
        "JAX can trace"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit status."""
    parser = _parser()
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        accepted = sorted(vars(options).keys() - {"command", "target"})
        parser.error(f"{unknown[0]}: {options.command} takes --{', --'.join(accepted)}")
    try:
        if "draws" in options:
            check_draws(options.draws, 1, "--draws")
            check_int("--seed", options.seed, -(2**63), 2**63 - 1)
            check_int("--loop_limit", options.loop_limit, 1, 1 << 20)
        # Output of the user's code is not part of the answer.
        with (
            contextlib.redirect_stdout(sys.stderr),
            noise.loop_limit(getattr(options, "loop_limit", 100)),
        ):
            answer = COMMANDS[options.command].ask(CommandContext(options))
    except Exception as error:
        if line := _correctable(error, str(getattr(options, "target", ""))):
            _say(f"{parser.prog}: {' '.join(line.split())}\n")
            return 2
        told = traceback.TracebackException.from_exception(error)
        calls = _outside(told)
        if all(f.filename.startswith(_LIBRARIES) for f in calls):
            raise
        told.stack = traceback.StackSummary.from_list(calls)
        _say("".join(told.format()))
        return 1
    shown, data = answer if isinstance(answer, CommandResult) else (answer, answer)
    if options.json:
        head = {"command": options.command, "function": options.target}
        if options.command != "audit":
            head["noise"] = getattr(options, "noise", "none")
        shown = json.dumps(head | plain_data(data), allow_nan=False)
    try:
        print(shown, flush=True)
    except BrokenPipeError:  # Nobody reads the output any more, as in `| head`.
        return 128 + signal.SIGPIPE
    except OSError as error:  # Such as a full disk.
        _say(f"{parser.prog}: output: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    try:
        print(end="", flush=True)  # To nothing where the output is closed.
    except OSError:  # Python would report it a second time.
        os._exit(status)
    sys.exit(status)
