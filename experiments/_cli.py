"""How a script runs: its main, its error lines, its exit status.

0 done; 1 a run that cannot continue, memory or disk that are used up, or a fault of the
program, with its traceback; 2 something the user can mend, in one line on stderr; 128 +
number of the signal interrupted.
"""

import contextlib
import errno
import os
import re
import shlex
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def _import_failed(kind: type, error: BaseException, trace: Any) -> None:
    """Ends a script whose imports lack a package of an extra, or are interrupted."""
    # The module is not loaded yet if absl or this package is missing.
    known = globals().get("_ending", lambda error: None)
    ending = ("interrupted", 130) if kind is KeyboardInterrupt else known(error)
    if ending is None:
        sys.__excepthook__(kind, error, trace)
        return
    with contextlib.suppress(SystemExit):
        fail(*ending)
    # Python would end with status 1 after this hook.
    os._exit(ending[1])


def fail(message: object, status: int = 2) -> None:
    """Prints one line on stderr and ends with an exit status."""
    # Names of files may hold anything, control codes of the terminal too.
    words = " ".join(str(message).split())
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
    with contextlib.suppress(OSError):  # A full stderr does not change the status.
        print(f"{Path(sys.argv[0]).name}: {text}", file=sys.stderr, flush=True)
    raise SystemExit(status)


# Scripts import this module first, and from here on imports take long.
sys.excepthook = _import_failed

from absl import app, flags, logging  # noqa: E402

from prednet_jax import files, records  # noqa: E402
from prednet_jax.errors import (  # noqa: E402
    RunError,
    UserError,
    missing_extra,
    no_backend,
    open_streams,
    repeat_lost_interrupts,
)

open_streams()
repeat_lost_interrupts()
FLAGS = flags.FLAGS
# Flags that hold paths; an input may have a name instead, such as walk.
_READ = (
    *("data", "images", "validation_data", "weights", "init_weights", "input"),
    "directory",
)
#: Names of flags by topic, in the order in which --help shows them.
TOPICS: dict[str, list[str]] = {}
# Errors of a disk, a network disk or a limit of the process, at which it has to end. A
# file that was open when its disk became read-only has no name in them.
_SYSTEM_ERRORS = (
    *(errno.EIO, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ESTALE),
    *(errno.ETIMEDOUT, errno.ENODEV, errno.ENXIO, errno.ENOTCONN),
    *(errno.EROFS, errno.EACCES, errno.EPERM),
)
_WRITTEN = ("workdir", "folder", "output", "record", "profile")


def run(main: Callable[[], None]) -> None:
    """Runs a script's main; flags of `_flags` and `_inherited` are its own."""
    logging.set_verbosity(logging.WARNING)
    for module in ("_flags", "_inherited"):
        for flag in FLAGS.get_key_flags_for_module(module):
            FLAGS.register_key_flag_for_module(sys.argv[0], flag)

    def guarded(_: list[str]) -> None:
        try:
            for name, value in chosen_flags().items():
                # Seeds may be larger, and have limits of their own.
                counts = type(value) is int and not re.search("seed|key", name)
                if counts and value >= 2**31:
                    fail(f"--{name}={value}: expected a whole number below 2147483648")
            for name in (*_READ, *_WRITTEN):
                place = FLAGS[name].value if name in FLAGS else None
                if isinstance(place, str):
                    FLAGS[name].value = os.path.expanduser(place)
                    _check_place(name, FLAGS[name].value)
            main()
        except BrokenPipeError:
            _leave_pipe()
        except (Exception, KeyboardInterrupt) as error:
            if (ending := _ending(error)) is None:
                raise
            try:
                fail(*ending)
            finally:
                # Threads of orbax wait for each other after an error of the disk.
                others = {*threading.enumerate()} - {threading.main_thread()}
                if isinstance(error, OSError) and not all(t.daemon for t in others):
                    with contextlib.suppress(OSError):  # Its disk may be full too.
                        sys.stdout.flush()
                    os._exit(ending[1])

    app.run(guarded, flags_parser=_parse)


def _ending(error: BaseException) -> tuple[str, int] | None:
    """Returns the line of an error and the exit status, or None for a fault of ours."""
    if isinstance(error, ModuleNotFoundError) and (said := missing_extra(error)):
        return said, 2
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, UserError):
        return str(error), 2
    if line := no_backend(error):
        return line, 2
    if isinstance(error, RunError):
        return str(error), 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = f" ({error.filename})" if error.filename else ""
        fewer = ", or fewer --keep_checkpoints" if "keep_checkpoints" in FLAGS else ""
        return f"the disk is full{place}: expected room{fewer}", 1
    if (
        isinstance(error, OSError)
        and error.errno in files.PATH_ERRORS
        and error.filename
    ):
        path, reason = os.fsdecode(error.filename), os.strerror(error.errno or 0)
        return f"{path}: {reason}; expected a path that can be used", 2
    if isinstance(error, OSError) and error.errno in _SYSTEM_ERRORS:
        place = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return (
            f"{place}{os.strerror(error.errno or 0)}: expected files that can be read "
            "and written; what was saved is kept"
        ), 1
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        first = (str(error).strip() or "MemoryError").splitlines()[0]
        return (
            f"out of memory ({first}): expected smaller --height, --width, --channels, "
            "--window, --batch or --replicas"
        ), 1
    if type(error).__name__ == "JaxRuntimeError" and "CUDA" in str(error):
        first = str(error).strip().splitlines()[0]
        return (
            f"the GPU failed ({first}): expected one that nvidia-smi lists; what was "
            "saved is kept, and the same command with --resume continues a run"
        ), 1
    return None


def _leave_pipe() -> None:
    """Ends the script where nobody reads its output any more, as in `| head`."""
    os._exit(128 + signal.SIGPIPE)


def show_help() -> None:
    """Prints the purpose of the script, its examples, and its flags by topic."""
    print((sys.modules["__main__"].__doc__ or "").strip())
    own = {f.name: f for f in FLAGS.get_key_flags_for_module("__main__")}
    listed = {name for names in TOPICS.values() for name in names}
    others = [name for name in own if name not in listed]
    for title, names in {"Main flags": others, **TOPICS}.items():
        # A flag is shown under the first topic that names it.
        chosen = [own.pop(name) for name in names if name in own]
        if chosen:
            print(f"\n{title}")
        for flag in chosen:
            default = (flag.default_as_str or "").strip("[']")
            text = flag.help.partition("; repeat this option")[0]
            text += f" (default: {default})" * bool(default)
            switch = "[no]" if isinstance(flag, flags.BooleanFlag) else ""
            first = f"  --{switch}{flag.name}: "
            indent = {"initial_indent": first, "subsequent_indent": " " * 6}
            print(textwrap.fill(" ".join(text.split()), 80, **indent))


def _parse(argv: list[str]) -> list[str]:
    try:
        if {"--help", "-h", "-?", "--helpshort"} & {*argv}:
            show_help()
            sys.stdout.flush()
            raise SystemExit(0)
        rest = FLAGS(argv)
    except BrokenPipeError:
        _leave_pipe()
    except flags.IllegalFlagValueError as error:
        named = re.match(r"flag --(\w+)=", str(error))
        flag = FLAGS[named[1]] if named else None
        if flag is not None and "other than None" in str(error):  # It is required.
            fail(f"--{flag.name} is missing; expected --{flag.name}=... ({flag.help})")
        accepted = flag.parser.syntactic_help if flag is not None else None
        fail(f"{error}; expected {accepted or 'one of those named'}")
    except flags.Error as error:
        unknown = isinstance(error, flags.UnrecognizedFlagError)
        fail(f"{error}{'; expected a flag that --help lists' * unknown}")
    if len(rest) > 1:
        fail(f"argument {rest[1]!r}: expected flags only; --help lists them")
    return rest


def _check_place(name: str, path: str) -> None:
    """Refuses an empty path, and an output path that cannot be written."""
    written = "file" if name in ("output", "record") else "directory"
    kind = "path" if name in _READ else written
    if not path:
        example = "; . is the current one" if kind == "directory" else ""
        fail(f"--{name}=: expected a {kind}{example}")
    if kind == "path":
        return
    path = str(Path(path))  # `file/` is not found, but `file` would be written.
    if kind == "file" and os.path.exists(path) and not os.path.isfile(path):
        what = "a directory" if os.path.isdir(path) else "a pipe or a device"
        fail(f"--{name}={path}: exists, and is {what}; expected a new path")
    # Such as the weights or the frames of the same command; --overwrite has own rules.
    if kind == "file" and "overwrite" not in FLAGS and os.path.exists(path):
        try:
            if os.path.getsize(path):
                records.read_json(path)
        except UserError:
            fail(f"--{name}={path}: exists, and is no JSON file; expected a new path")
    if kind == "directory" and os.path.isfile(path):
        fail(
            f"--{name}={path}: {path} is no directory that can be written; "
            "expected a new path, or a directory"
        )
    try:
        files.check_writable(path)
    except UserError as error:
        fail(f"--{name}={error}")


def chosen_flags() -> dict[str, Any]:
    """Returns every flag of the script and its value."""
    own = FLAGS.get_key_flags_for_module("__main__")
    return {flag.name: flag.value for flag in own}


def given_flags() -> dict[str, Any]:
    """Returns the flags of the script that were given, and their values."""
    own = FLAGS.get_key_flags_for_module("__main__")
    return {flag.name: flag.value for flag in own if flag.present}


def provenance(**effective: Any) -> dict[str, Any]:
    """Returns the origin of a result: the command, the flags, the code.

    The `effective` values take the place of flags that were not given. The directory in
    which a result was first written means nothing to a reader, so --workdir is left
    out.
    """
    own = FLAGS.get_key_flags_for_module("__main__")
    present = [f for f in own if f.present and f.name != "workdir"]
    words = [word for f in present for word in f.serialize().splitlines()]
    script = f"experiments/{Path(sys.argv[0]).name}"
    return {
        "command": shlex.join(["python", script, *words]),
        "flags": {
            k: v for k, v in (chosen_flags() | effective).items() if k != "workdir"
        },
        "versions": records.versions(),
        "git_commit": records.git_commit(Path(__file__).parent),
    }


def progress(items: Sequence[Any]) -> Iterable[Any]:
    """Yields the items, with a bar on stderr where they take longer than five seconds.

    In a file a line follows every ten seconds.
    """
    from tqdm import tqdm

    interval = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(items, delay=5, mininterval=interval, leave=False, dynamic_ncols=True)


def write(path: Path, record: Mapping[str, Any], **effective: Any) -> None:
    """Writes a record as JSON, with its `provenance`; makes its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_json(path, {**provenance(**effective), **record})
