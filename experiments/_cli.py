"""How a script runs: its main, its error lines, its exit status.

0 done; 1 a run that cannot go on, memory or disk that are used up, in one line, or a
fault of the program, with its traceback; 2 something the user can mend, in one line on
stderr; 128 + number of the signal interrupted.
"""

import contextlib
import errno
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from prednet_jax.errors import missing_extra

FLAGS = flags.FLAGS


def run(main: Callable[[list[str]], None]) -> None:
    """Runs a script's main."""
    logging.set_verbosity(logging.WARNING)
    app.run(_guarded(main), flags_parser=_parse)


def _import_failed(kind: type, error: BaseException, trace: Any) -> None:
    """Ends a script whose imports lack a package of an extra, or are interrupted."""
    said, status = None, 2
    if isinstance(error, ModuleNotFoundError):
        said = missing_extra(error)
    cause: BaseException | None = error
    while cause is not None:  # An import may wrap what interrupted it.
        if isinstance(cause, KeyboardInterrupt):
            said, status = "interrupted", 130
        cause = cause.__cause__ or cause.__context__
    if said is None:
        sys.__excepthook__(kind, error, trace)
        return
    print(f"{_program()}: {said}", file=sys.stderr, flush=True)
    # Python would end with status 1 after this hook.
    os._exit(status)


# Scripts import this module first.
sys.excepthook = _import_failed


def _guarded(main: Callable) -> Callable:
    def guarded(argv: list[str]) -> None:
        from prednet_jax import noise
        from prednet_jax.errors import RunError, UserError

        # The noise library stands alone and has an error of its own.
        mendable = (UserError, getattr(noise, "NoiseError", UserError))
        try:
            for name in ("workdir", "profile"):
                folder = FLAGS[name].value if name in FLAGS else None
                # --profile of calibrate_noise.py is a list of noise profiles.
                if isinstance(folder, str):
                    FLAGS[name].value = os.path.expanduser(folder)
                    _check_folder(name, FLAGS[name].value)
            main(argv)
        except mendable as error:
            fail(error)
        except RunError as error:
            fail(error, status=1)
        except ModuleNotFoundError as error:
            said = missing_extra(error)
            if said is None:
                raise
            fail(said)
        except BrokenPipeError:
            _leave_pipe()
        except (MemoryError, OSError, RuntimeError) as error:
            used_up = _used_up(error)
            if used_up is None:
                raise
            fail(used_up, status=1)
        except KeyboardInterrupt:
            print(f"{_program()}: interrupted", file=sys.stderr)
            raise SystemExit(130) from None

    return guarded


def _leave_pipe() -> None:
    """Ends the script where nobody reads its output any more, as in `| head`."""
    os._exit(128 + signal.SIGPIPE)


def _parse(argv: list[str]) -> list[str]:
    try:
        rest = FLAGS(argv)
    except SystemExit:
        # absl's --help exits with 1; asking for help is no mistake.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
            raise SystemExit(0) from None
        _leave_pipe()
    except BrokenPipeError:
        _leave_pipe()
    except flags.IllegalFlagValueError as error:
        name = _named(error)
        if name and "other than None" in str(error):  # Of a flag that is required.
            fail(f"--{name} is missing: {FLAGS[name].help}")
        fail(f"{error}; expected {_expected(name)}")
    except flags.UnrecognizedFlagError as error:
        fail(f"{error}; expected a flag that --help lists")
    except flags.Error as error:
        fail(error)
    if len(rest) > 1:
        fail(f"argument {rest[1]!r}: expected flags only, such as --{_some_flag()}")
    return rest


def _named(error: flags.Error) -> str | None:
    """The flag that a message of absl names."""
    match = re.match(r"flag --(\w+)=", str(error))
    return match[1] if match and match[1] in FLAGS else None


def _expected(name: str | None) -> str:
    """What a flag would accept."""
    if name is None:
        return "another value"
    return FLAGS[name].parser.syntactic_help or "one of those named"


def _some_flag() -> str:
    names = [flag.name for flag in FLAGS.get_key_flags_for_module(sys.argv[0])]
    return names[0] if names else "help"


def _program() -> str:
    return Path(sys.argv[0]).name


def fail(message: object, *, status: int = 2) -> None:
    """One line on stderr, and the exit status."""
    # Names of files may hold anything, control codes of the terminal too.
    words = " ".join(str(message).split())
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
    print(f"{_program()}: {text}", file=sys.stderr)
    raise SystemExit(status)


def _used_up(error: Exception) -> str | None:
    """What to say of memory or a disk that is used up; None for any other error."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f" ({error.filename})" if error.filename else ""
        fewer = ", or fewer --keep_checkpoints" if "keep_checkpoints" in FLAGS else ""
        return f"the disk is full{place}: expected room{fewer}"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        first = (str(error).strip() or "MemoryError").splitlines()[0]
        return (
            f"out of memory ({first}): expected smaller --height, --width, --channels, "
            "--window, --batch or --replicas"
        )
    return None


def _check_folder(name: str, path: str) -> None:
    """Refuses a directory that cannot be written, before anything is measured."""
    if not path:
        fail(f"--{name}=: expected a directory; . is the current one")
    folder = Path(path).absolute()
    # A link that leads nowhere does not exist, and cannot be made either.
    nearest = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        fail(
            f"--{name}={path}: {nearest} is no directory that can be written; "
            "expected one, or a path below one"
        )


def chosen_flags() -> dict[str, Any]:
    """Every flag of the script and its value."""
    return {
        flag.name: flag.value for flag in FLAGS.get_key_flags_for_module("__main__")
    }


def show_agreement(runs: Iterable[Any]) -> None:
    """Prints whether runs made again agree with published ones; status 1 if not."""
    runs = list(runs)
    print("run: loss again, published, factor allowed")
    for run in runs:
        print(run)
    if not all(run.holds for run in runs):
        raise SystemExit(1)


def command() -> str:
    """The command that repeats this run, here or elsewhere, but for its directory."""
    words = ["python", f"experiments/{_program()}"]
    for flag in FLAGS.get_key_flags_for_module("__main__"):
        if flag.present and flag.name != "workdir":
            words += flag.serialize().splitlines()
    return shlex.join(words)


def provenance() -> dict[str, Any]:
    """Where a result comes from: the command, the flags, the code."""
    from prednet_jax import provenance

    return {
        "command": command(),
        # Where a record was first written says nothing to who reads it.
        "flags": {k: v for k, v in chosen_flags().items() if k != "workdir"},
        "versions": provenance.versions(),
        "git_commit": provenance.git_commit(Path(__file__).parent),
    }
