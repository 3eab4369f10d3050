"""What the scripts share: error messages, and the flags that build a network."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


def _with_measured_heap() -> None:
    """Starts the script again, in place, where the C library's heap is not set for XLA.

    The C library takes these settings from the environment of a new process alone:

    hugetlb    memory in pages of 2 MiB. XLA on a CPU allocates the temporaries of a
               program at every call, and so large a block comes from the system each
               time, which clears it page by page: a tenth of a training step at the
               published size.
    arena_max  one heap for two processors, not eight for each. Every thread that
               compiles takes a heap, and what it frees is lost to the others: 30 MB on
               two processors.
    """
    folder, script = Path(__file__).resolve().parent, Path(sys.argv[0]).resolve()
    a_script = script.is_file() and script.parent == folder
    if not a_script or sys.platform != "linux":
        return
    heaps = max(1, len(os.sched_getaffinity(0)) // 2)
    chosen = os.environ.get("GLIBC_TUNABLES", "")
    settings = {"glibc.malloc.hugetlb": 1, "glibc.malloc.arena_max": heaps}
    missing = [f"{name}={n}" for name, n in settings.items() if name not in chosen]
    if not missing:
        return
    tunables = ":".join(filter(None, (chosen, *missing)))
    with contextlib.suppress(OSError):  # the heap as it is, then
        os.execve(
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            os.environ | {"GLIBC_TUNABLES": tunables},
        )


# First of all: nothing that was imported before is kept.
_with_measured_heap()
# Scripts run as files: the package is installed, this folder's siblings are not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
from absl import app, flags, logging  # noqa: E402

from prednet_jax.config import (  # noqa: E402
    CONVOLUTIONS,
    VARIANTS,
    AutoencoderConfig,
    PredNetConfig,
)

FLAGS = flags.FLAGS
# Examples end here in an endless source: beyond what any run trains on, where the walk
# of seed 0 shows colours and moves.
EXAMPLES_END = 10**8 + 400
# Reading a program from the cache takes less.
LONG_COMPILE_SECONDS = 3.0
# Updates before a trace begins.
PROFILE_AFTER = 2
MODELS = ("prednet", "autoencoder")


def run(main: Callable) -> None:
    """Runs a script: a bad flag, file or value is one line on stderr and status 2."""
    logging.set_verbosity(logging.WARNING)
    app.run(_guarded(main), flags_parser=_parse)


def _parse(argv: list[str]) -> list[str]:
    try:
        rest = FLAGS(argv)
    except SystemExit:
        # absl's --help exits with 1; asking for help is no mistake.
        raise SystemExit(0) from None
    except flags.IllegalFlagValueError as error:
        fail(f"{error}; expected {_expected(str(error))}")
    except flags.UnrecognizedFlagError as error:
        fail(f"{error}; expected a flag that --help lists")
    except flags.Error as error:
        fail(error)
    if len(rest) > 1:
        fail(f"argument {rest[1]!r}: expected flags only, such as --{_some_flag()}")
    return rest


def _expected(message: str) -> str:
    """What the flag that a message of absl names would accept."""
    match = re.match(r"flag --(\w+)=", message)
    if match is None or match[1] not in FLAGS:
        return "another value"
    return FLAGS[match[1]].parser.syntactic_help or "one of those named"


def _some_flag() -> str:
    names = [flag.name for flag in FLAGS.get_key_flags_for_module(sys.argv[0])]
    return names[0] if names else "help"


def _guarded(main: Callable) -> Callable:
    def guarded(argv: list[str]) -> object:
        from prednet_jax import backends

        backends.set_xla_flags()
        backends.release_memory_of_compiling()
        try:
            if "workdir" in FLAGS and FLAGS.workdir:
                check_workdir(FLAGS.workdir)
            return main(argv)
        except (ValueError, TypeError) as error:
            if os.environ.get("PREDNET_TRACEBACK"):
                raise
            fail(error)
        except OSError as error:
            if os.environ.get("PREDNET_TRACEBACK"):
                raise
            fail(f"{error.filename or 'file'}: {error.strerror or error}")
        except KeyboardInterrupt:
            print(f"{_program()}: interrupted", file=sys.stderr)
            raise SystemExit(130) from None
        return None

    return guarded


def _program() -> str:
    return Path(sys.argv[0]).name


def fail(message: object) -> None:
    """One line on stderr, status 2 (PREDNET_TRACEBACK=1 shows the traceback)."""
    text = " ".join(str(message).split())
    print(f"{_program()}: {text}", file=sys.stderr)
    raise SystemExit(2)


def integers(name: str, values: list[str] | None) -> tuple[int, ...] | None:
    """A comma-separated flag as whole numbers.

    Raises:
        ValueError: an entry is no whole number.
    """
    if values is None:
        return None
    try:
        return tuple(int(value) for value in values)
    except ValueError:
        raise ValueError(
            f"--{name}={','.join(values)}: expected whole numbers such as 3,48,96,192"
        ) from None


def define_model_flags(
    *, channels: str = "3,48,96,192", height: int = 120, width: int = 160
) -> None:
    """Declares the flags that `model_config` reads."""
    flags.DEFINE_enum("model", "prednet", MODELS, "Network to train.")
    flags.DEFINE_enum("variant", "watanabe", VARIANTS, "Published form of PredNet.")
    flags.DEFINE_list(
        "channels",
        channels.split(","),
        "Widths of the layers, bottom first; the first is the frame's channels.",
    )
    flags.DEFINE_list("r_channels", None, "Widths of R; default: --channels.")
    flags.DEFINE_integer(
        "height", None, f"Rows of a frame; default {height}, 28 for the autoencoder."
    )
    flags.DEFINE_integer(
        "width", None, f"Columns of a frame; default {width}, 28 for the autoencoder."
    )
    flags.DEFINE_float("pixel_max", 1.0, "Upper clip of the bottom prediction.")
    flags.DEFINE_list("a_filters", ["3"], "Filter size(s) E -> A, one or layers - 1.")
    flags.DEFINE_list("ahat_filters", ["3"], "Filter size(s) of the predictions.")
    flags.DEFINE_list("r_filters", ["3"], "Filter size(s) of the ConvLSTM gates.")
    flags.DEFINE_enum(
        "convolution", "auto", CONVOLUTIONS, "Algorithm of the convolutions."
    )
    flags.DEFINE_list("hidden", ["128", "32", "128"], "Widths of the autoencoder.")
    FLAGS.set_default("channels", channels.split(","))
    _SIZES.update(height=height, width=width)


def define_data_flags() -> None:
    """Declares the flags that `open_source` reads."""
    flags.DEFINE_string(
        "data",
        None,
        "walk, digits, mnist, moving_mnist, moving_digits, or a PATH: a folder of "
        "images, a text list of images or of such lists, a video, an .npz with "
        "`frames` uint8 [T, H, W, C]. "
        "Default: walk, or digits for the autoencoder.",
    )
    flags.DEFINE_enum(
        "crop", "center", ["center", "resize"], "How frames are brought to size."
    )
    flags.DEFINE_list(
        "offset",
        ["0", "0"],
        "Columns right, rows down, from the centre of the crop.",
    )


_SIZES: dict[str, int] = {}


def model_config(data: str) -> PredNetConfig | AutoencoderConfig:
    """The network that the flags describe, for frames from `data`.

    Raises:
        ValueError: a flag's value is outside what is accepted.
    """
    if FLAGS.model == "autoencoder":
        from prednet_jax import data as sources

        return AutoencoderConfig(
            height=28 if FLAGS.height is None else FLAGS.height,
            width=28 if FLAGS.width is None else FLAGS.width,
            channels=sources.own_size(data)[2],
            hidden=integers("hidden", FLAGS.hidden) or (),
        )

    def sizes(name: str) -> int | tuple[int, ...]:
        values = integers(name, getattr(FLAGS, name)) or ()
        return values[0] if len(values) == 1 else values

    return PredNetConfig(
        channels=integers("channels", FLAGS.channels) or (),
        variant=FLAGS.variant,
        height=_SIZES["height"] if FLAGS.height is None else FLAGS.height,
        width=_SIZES["width"] if FLAGS.width is None else FLAGS.width,
        r_channels=integers("r_channels", FLAGS.r_channels),
        pixel_max=FLAGS.pixel_max,
        a_filters=sizes("a_filters"),
        ahat_filters=sizes("ahat_filters"),
        r_filters=sizes("r_filters"),
        convolution=FLAGS.convolution,
    )


def load_weights(path: str) -> tuple[PredNetConfig, dict]:
    """Weights and network from a Keras HDF5 or a Chainer npz file.

    Raises:
        ValueError: the file is missing or is neither.
    """
    from prednet_jax import weights

    if path.endswith((".h5", ".hdf5")):
        height = _SIZES["height"] if FLAGS.height is None else FLAGS.height
        width = _SIZES["width"] if FLAGS.width is None else FLAGS.width
        return weights.load_keras(
            path, height=height, width=width, pixel_max=FLAGS.pixel_max
        )
    return weights.load_chainer(path)


def load_run(folder: str) -> tuple:
    """Network and weights of a run of train.py, at its last checkpoint.

    Raises:
        ValueError: the directory is no such run, or has no checkpoint.
    """
    from prednet_jax import records
    from prednet_jax.training import checkpoints, loop, truncated

    manifest = records.read_json(Path(folder) / records.MANIFEST)
    saved = checkpoints.updates(folder)
    if not saved:
        raise ValueError(
            f"{folder}: no checkpoint; expected a run with --checkpoint_every"
        )
    kind = PredNetConfig if manifest["model"] == "prednet" else AutoencoderConfig
    lists = {k: tuple(v) for k, v in manifest["network"].items() if isinstance(v, list)}
    config = kind(**(manifest["network"] | lists))
    optimizer = loop.default_optimizer(config, manifest["updates"])
    params = loop.initial_params(config, manifest["seed"])
    like = truncated.initial_train_state(config, params, optimizer)
    return config, checkpoints.restore(folder, saved[-1], like).params


def open_source(name: str, config: PredNetConfig | AutoencoderConfig, seed: int):
    """The frames of `--data`, at the network's size."""
    from prednet_jax import data

    grey = isinstance(config, AutoencoderConfig)
    offset = integers("offset", FLAGS.offset) or ()
    if len(offset) != 2:
        raise ValueError(
            f"--offset={','.join(FLAGS.offset)}: expected columns,rows such as 0,0"
        )
    return data.open_source(
        name,
        height=config.height,
        width=config.width,
        channels=config.channels if grey else config.channels[0],
        seed=seed,
        crop=FLAGS.crop,
        offset=(offset[0], offset[1]),
    )


def use_compilation_cache() -> None:
    """Keeps compiled programs between processes.

    In JAX_COMPILATION_CACHE_DIR, or else in the user's cache folder. A folder for each
    number of threads: XLA partitions loops by it when it compiles, so a program from
    another count would silently be another arm.
    """
    import jax

    from prednet_jax import backends

    root = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if root is None:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = os.path.join(home, "prednet_jax")
    folder = os.path.join(root, f"threads_{backends.available_threads()}")
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    _announce_long_compile(folder)


def _announce_long_compile(folder: str) -> None:
    """One line on stderr, once, while a program has been compiling for a while.

    A program from the cache is there sooner, and nothing is said.
    """
    import jax

    waiting: list[threading.Timer] = []
    said = threading.Event()

    def say() -> None:
        if not said.is_set():
            said.set()
            print(
                f"compiling: seconds to minutes the first time, then kept in {folder}",
                file=sys.stderr,
                flush=True,
            )

    def begin(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/compile_requests_use_cache":
            timer = threading.Timer(LONG_COMPILE_SECONDS, say)
            timer.daemon = True
            waiting.append(timer)
            timer.start()

    def end(event: str, seconds: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            while waiting:
                waiting.pop().cancel()

    jax.monitoring.register_event_listener(begin)
    jax.monitoring.register_event_duration_secs_listener(end)


def manifest(config: PredNetConfig | AutoencoderConfig, dtype: np.dtype) -> dict:
    """What every run records about its process.

    Args:
        config: the network.
        dtype: in which it is trained.
    """
    from prednet_jax import backends, keys, records
    from prednet_jax.models import prednet

    algorithms = {}
    if isinstance(config, PredNetConfig):
        algorithms = {"convolutions": prednet.algorithms(config, dtype)}
    chosen = {
        flag.name: flag.value for flag in FLAGS.get_key_flags_for_module("__main__")
    }
    return {
        "git_commit": records.git_commit(Path(__file__).parent),
        "versions": records.versions(),
        "device": backends.device_description(),
        "measured_parallelism": backends.measured_parallelism(),
        "flags": chosen,
        "network": dataclasses.asdict(config),
        "environment": records.environment(),
        "prng": keys.IMPLEMENTATION,
        **algorithms,
    }


def check_workdir(path: str) -> None:
    """Refuses a --workdir that cannot be written, before anything is measured.

    Raises:
        ValueError: a file is in the way, or the directory is not writable.
    """
    folder = Path(path).absolute()
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ValueError(
            f"--workdir={path}: {nearest} is no directory that can be written; "
            "expected one, or a path below one"
        )


def command() -> str:
    """The command that repeats this run, here or elsewhere, but for its directory."""
    words = ["python", f"experiments/{Path(sys.argv[0]).name}"]
    for flag in FLAGS.get_key_flags_for_module("__main__"):
        if flag.present and flag.name != "workdir":
            words += flag.serialize().splitlines()
    return shlex.join(words)


class Training(NamedTuple):
    """What a script trains by its own loop.

    Attributes:
        config: the network.
        dtype: in which it is trained.
        optimizer: for this number of updates.
        weights: initial weights, float32.
        batches: of each update frames `[T + 1, 1, H, W, C]` (`[1, 1, H, W, C]` for an
            autoencoder), uint8 on the host, and whether they open a sequence.
    """

    config: PredNetConfig | AutoencoderConfig
    dtype: np.dtype
    optimizer: Any
    weights: dict
    batches: Iterator[tuple]


def training(updates: int) -> Training:
    """What the flags of network and data, --window, --seed and --precision describe.

    Args:
        updates: to be made, from 1.
    """
    from prednet_jax import backends
    from prednet_jax.training import loop

    use_compilation_cache()
    name = FLAGS.data or ("digits" if FLAGS.model == "autoencoder" else "walk")
    config = model_config(name)
    dtype = backends.set_precision(FLAGS.precision)
    source = open_source(name, config, FLAGS.seed)
    schedule = loop.frame_schedule(config, source, window=FLAGS.window, updates=updates)
    return Training(
        config,
        dtype,
        loop.default_optimizer(config, updates),
        loop.initial_params(config, FLAGS.seed),
        _batches(source, schedule),
    )


def _batches(source: object, schedule: object) -> Iterator[tuple]:
    from prednet_jax import data

    if not schedule.window:
        for images in data.single_images(source, schedule, 64):
            for image in images:
                yield image[None, None], np.bool_(True)
        return
    for frames, first in data.chunks(source, schedule, 16):
        for window, opens in zip(frames, first, strict=True):
            yield window[:, None], np.bool_(opens)


def joined(digests: list[str]) -> str:
    """One SHA-256 for several; of one, itself."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def profiled(steps: Iterator, folder: str | None) -> Iterator:
    """The same steps, with a trace of the third to the fifth where a folder is named.

    The first two compile and warm up.
    """
    if folder is None:
        yield from steps
        return
    import jax

    number = 0
    for number, step in enumerate(steps, 1):
        yield step
        # What is asked for next is the step after this one.
        if number == PROFILE_AFTER:
            jax.profiler.start_trace(folder, create_perfetto_trace=True)
        if number == PROFILE_AFTER + 3:
            jax.profiler.stop_trace()
    if PROFILE_AFTER <= number < PROFILE_AFTER + 3:
        jax.profiler.stop_trace()


def progress(name: str, total: int, done: int, shown: bool, *, unit: str = "update"):
    """A progress bar with rate and remaining time."""
    from tqdm import tqdm

    return tqdm(
        desc=name,
        total=total,
        initial=done,
        disable=not shown,
        unit=unit,
        dynamic_ncols=True,
    )


@functools.cache
def _predictor(config):
    """Predicts `[T, H, W, C]` frames; compiled once for all seeds of a network."""
    import jax

    from prednet_jax.models import autoencoder, prednet

    if isinstance(config, AutoencoderConfig):
        return lambda params, x: autoencoder.reconstruct(params, config, x)
    return jax.jit(lambda p, x: prednet.predict(p, config, x[:, None])[0][:, 0])


def save_examples(folder: Path, config, params: dict, source, count: int) -> None:
    """Predicts frames that follow a warm-up and keeps them in `examples.npz`.

    The frames are the last of the source, or far beyond training in an endless one.
    """
    import jax

    from prednet_jax import records
    from prednet_jax.training import truncated

    warm_up = 0 if isinstance(config, AutoencoderConfig) else 10
    total = min(source.length, warm_up + count)
    start = min(source.length, EXAMPLES_END) - total
    frames = source.read(start, start + total)
    dtype = jax.tree.leaves(params)[0].dtype
    x = truncated.to_pixels(jax.numpy.asarray(frames), dtype)
    predictions = _predictor(config)(params, x)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        frames=frames[-count:],
        before=frames[-count - 1 : -1],
        predictions=np.asarray(predictions[-count:], np.float32),
    )
    records.write_bytes(folder / "examples.npz", buffer.getvalue())
