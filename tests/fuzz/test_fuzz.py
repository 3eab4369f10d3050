"""Broken files, texts and commands: read, or refused on one line; else the test fails.

FUZZ=N tries N thousand inputs, FUZZ_COMMANDS=N whole commands (`make fuzz`).
"""

import contextlib
import io
import json
import os
import random

import numpy as np
import pytest
from absl import flags
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from prednet_jax import data, noise, records, weights
from prednet_jax.data import images
from prednet_jax.errors import UserError
from prednet_jax.training.run_directory import inspect_run_directory
from prednet_jax.weights import load_run
from tests.processes import ROOT, SCRIPTS

TIMES = int(os.environ.get("FUZZ", "0"))
COMMANDS = int(os.environ.get("FUZZ_COMMANDS", "0"))
CHAINER = ROOT / "tests" / "golden" / "chainer_tiny" / "initial.model.npz"
PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def amount(share):
    """Settings of one property: `share` inputs of a thousand, of which FUZZ are asked.

    In `make test` the same few inputs every time.
    """
    return settings(
        max_examples=share * TIMES if TIMES else max(10, share // 5),
        derandomize=not TIMES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def refused_on_one_line(*kinds):
    """Lets pass what a user can mend, if its message is one line of some words."""
    try:
        yield
    except (UserError, *kinds) as error:
        text = str(error)
        assert text
        assert "\n" not in text
        assert len(text) < 100_000  # Values of 5000 digits are quoted.


@st.composite
def edited(draw, contents):
    """One of some files with bytes changed, cut short or lengthened."""
    out = bytearray(draw(st.sampled_from(contents)))
    place = st.integers(0, len(out) - 1)
    changes = st.lists(st.tuples(place, st.integers(0, 255)), max_size=6)
    for where, value in draw(changes):
        out[where] = value
    stop = draw(st.one_of(st.just(len(out)), place))
    return bytes(out[:stop]) + draw(st.one_of(st.just(b""), st.binary(max_size=8)))


def saved(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def encoded(suffix, **options):
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, suffix, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with some pictures and a list."""
    root = tmp_path_factory.mktemp("fuzz")
    for i in range(3):
        Image.fromarray(PIXELS).save(root / f"{i}.png")
    (root / "inner.txt").write_text("0.png\n1.png\n")
    return root


def opened(path):
    source = data.open_source(str(path), height=8, width=8)
    frames = source.read(0, min(source.length, 3))
    assert frames.dtype == np.uint8
    assert frames.shape[1:] == (8, 8, 3)


def loaded(path):
    weights.load(path, height=24, width=32)


def decoded(path):
    images.read_header(path.read_bytes(), "picture")
    assert images.decode(path.read_bytes(), "picture").dtype == np.uint8


LINES = st.one_of(
    st.sampled_from(["0.png", "1.png", "./2.png", "inner.txt", "list.txt", "..", "/"]),
    st.sampled_from(["/etc/passwd", "../../../etc/shadow", "/dev/zero", "a" * 300]),
    st.text(max_size=20),
)
LISTS = st.builds(
    lambda lines, end, code: end.join(lines).encode(code, "replace"),
    st.lists(LINES, max_size=4),
    st.sampled_from(["\n", "\r\n", "\r", "\0"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
)
HKL = ROOT / "tests" / "golden" / "hickle" / "4.0.4" / "X_train.hkl"
FRAMES = saved(frames=np.stack([PIXELS] * 3), boundaries=np.array([0, 2]))
EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
FORMATS = [
    *map(encoded, ("PNG", "TIFF", "GIF", "BMP", "PPM", "WEBP")),
    encoded("JPEG", exif=EXIF),
    encoded("TIFF", compression="tiff_lzw"),
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 12\nshowpage\n",
]
ARRAYS = [
    None,
    np.float32(1),
    np.zeros((0, 3, 3, 3), np.float32),
    np.full((3, 3, 3, 3), np.nan, np.float32),
    np.ones((3, 3, 3, 3), complex),
    np.array(["a"]),
    np.ones((1, 1, 1, 1), np.float16),
    np.ones((9, 1, 2, 4)),
]
WHOLE = dict(np.load(CHAINER))
NETWORK_ARRAYS = st.dictionaries(
    st.sampled_from(sorted(WHOLE)) | st.text("Conv/PLSTMA01W", min_size=1),
    st.sampled_from(ARRAYS),
    min_size=1,
    max_size=3,
).map(lambda new: saved(**{k: v for k, v in (WHOLE | new).items() if v is not None}))
NAMES = st.text("ab/", min_size=1, max_size=4)
TREES = st.sets(NAMES, min_size=1, max_size=4).map(
    lambda names: saved(**dict.fromkeys(sorted(names), PIXELS))
)
# By file name: inputs of a thousand, contents, and who reads them.
FILES = {
    "list.txt": (250, LISTS, opened),
    "frames.npz": (150, edited([FRAMES]), opened),
    "frames.hkl": (60, edited([HKL.read_bytes()]), opened),
    "picture": (200, edited(FORMATS), decoded),
    "bytes.model": (40, edited([CHAINER.read_bytes()]), loaded),
    "arrays.model": (10, NETWORK_ARRAYS, loaded),
    "tree.npz": (40, TREES, records.read_tree),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.filterwarnings("ignore")
def test_files(made, name):
    share, contents, read = FILES[name]

    @amount(share)
    @given(content=contents)
    def check(content):
        (made / name).write_bytes(content)
        with refused_on_one_line():
            read(made / name)

    check()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["update", "loss", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
JUNK = ["", "[" * 3000, "1" * 5000, '{"a": NaN}', "\0", "{", "\ud800"]


@amount(150)
@given(rows=st.lists(VALUES, max_size=3), manifest=VALUES, junk=st.sampled_from(JUNK))
def test_records(made, rows, manifest, junk):
    lines = [json.dumps(row) for row in rows] + [junk] * bool(junk)
    text = "\n".join(lines).encode(errors="surrogatepass")
    (made / records.METRICS).write_bytes(text)
    (made / records.MANIFEST).write_text(json.dumps(manifest))
    with refused_on_one_line():
        run = records.read_run(made)
        assert all(column.dtype == np.float64 for column in run.metrics.values())


MODELS = st.sampled_from(["prednet", "autoencoder", "os:system", ":"])
SIZES = st.sampled_from(["channels", "height", "hidden", "x"])
NETWORKS = st.dictionaries(SIZES, VALUES)
MANIFESTS = st.fixed_dictionaries(
    {},
    optional={
        "model": VALUES | MODELS,
        "network": VALUES | NETWORKS,
        **dict.fromkeys(("flags", "updates", "final_params_sha256"), VALUES),
    },
)


@amount(60)
@given(manifest=VALUES | MANIFESTS, resume=st.booleans())
def test_manifests_of_runs(made, manifest, resume):
    folder = made / "run"
    folder.mkdir(exist_ok=True)
    (folder / records.MANIFEST).write_text(json.dumps(manifest))
    with refused_on_one_line():
        load_run(folder)
    with refused_on_one_line():
        inspect_run_directory(folder, updates=3, resume=resume, overwrite=False)


WORDS = [
    *("none", "identity", "ulp", "gaussian", "reduction_order", "stochastic_rounding"),
    *("tf32", "bf16", "fp16", "monte_carlo", "partials", "granularity", "element"),
    *("tile", "shared", "scale", "max_ulps", "mantissa_bits", "profile", "xla_gpu"),
    *("schedule", "run", "call", "shortest", "seed", "1e-3", "8", "-1", "0", "1e999"),
    *("nan", "inf", "True", "false", "9" * 5000, "٣", "1_000", "0x10", ""),
]
JOINTS = [":", ",", "=", "+", " ", ";", ".", "\n", "@", "(", ")"]
SPECS = st.lists(st.sampled_from(WORDS + JOINTS), max_size=9).map("".join)
SPECS |= st.text(max_size=30)


@amount(450)
@given(text=SPECS)
def test_noise_specs(text):
    with refused_on_one_line(noise.NoiseError):
        spec = noise.parse(text)
        assert noise.parse(noise.format(spec)) == spec


ODD = ["", " ", "1e3", "nan", "inf", "0x10", "9" * 5000, "３", "-0", "1_0"]
NUMBERS = st.integers(-3, 40).map(str) | st.sampled_from(ODD) | st.text(max_size=5)
LISTED = ("channels", "r_channels", "hidden", "a_filters", "r_filters", "offset")
WORDS_OF = {
    "variant": ["lotter", "watanabe", "other", ""],
    "convolution": ["auto", "xla", "other", ""],
    "model": ["prednet", "autoencoder", "x", ":", "no:where", "a.b:c"],
    "data": ["walk", "digits", "", ".", "/dev/null", "no\0where"],
    "crop": ["center", "antialias", "resize", "Center", ""],
    "precision": ["float32", "float64", "half", ""],
}
FLAGS = (
    dict.fromkeys(LISTED, st.lists(NUMBERS, max_size=5).map(",".join))
    | dict.fromkeys(("height", "width", "pixel_max"), NUMBERS)
    | {name: st.sampled_from(words) for name, words in WORDS_OF.items()}
)


@pytest.fixture(scope="module")
def declared():
    """`_flags`, whose flags are declared here unless another test has them already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        import _flags
    known = set(flags.FLAGS)
    if "channels" not in known:
        _flags.define_model_flags()
        _flags.define_data_flags()
        _flags.define_precision_flag()
    yield _flags
    flags.FLAGS.unparse_flags()
    for name in set(flags.FLAGS) - known:
        delattr(flags.FLAGS, name)


def parse(*words):
    flags.FLAGS.unparse_flags()
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()
    flags.FLAGS(["train.py", *words])


@amount(200)
@given(
    values=st.lists(
        st.sampled_from(sorted(FLAGS)), min_size=1, max_size=4, unique=True
    ).flatmap(lambda names: st.fixed_dictionaries({n: FLAGS[n] for n in names}))
)
def test_flags(declared, values):
    try:
        parse(*(f"--{name}={value}" for name, value in values.items()))
    except flags.Error:
        return  # `_cli` prints these as it prints a UserError.
    with refused_on_one_line():
        described, frames = declared.network(), declared.frames()
        declared.check_model_flags(described.model)
        task = declared.task_of(described, frames.data)
        assert min(task.frame) > 0
        if "data" in values or "crop" in values:
            frames.open_source(task)


# Each is wrong whatever stands beside it.
WRONG = (
    *("--channels=3,x", "--channels=", "--channels=0", "--channels=3,-4", "--height=0"),
    *("--height=7", "--width=1e3", "--width=nan", "--variant=other", "--window=1"),
    *("--updates=0", "--updates=-1", "--updates=x", "--seed=-1", "--noise=gausian"),
    *("--noise=gaussian:scale=-1", "--noise=ulp:max_ulps=0", "--noise=ulp+"),
    *("--data=/dev/zero", "--data=nowhere", "--data=~nobody_here/x.txt", "--data="),
    *("--crop=middle", "--offset=1", "--offset=a,b", "--pixel_max=0", "--r_filters=2"),
    *("--precision=half", "--targets=maybe", "--convolution=other", "--model=no:where"),
    *("--init_weights=nowhere", "--init_weights=/dev/zero", "--init_weights=."),
    *("--batch=0", "--draw=-1", "--checkpoint_every=-1", "--examples=-1", "stray"),
    *("--replicas=-1", "--seeds=1,b", "--layer_weights=a", "--objective=best"),
    "--nosuch",
)


def broken_file(random_, folder):
    """A flag with a weight file, a list or an archive that something is wrong in."""
    content = bytearray(CHAINER.read_bytes())
    name = random_.choice(["cut.model", "flipped.model", "a.model", "a.txt", "a.npz"])
    flag = "init_weights" if name.endswith(".model") else "data"
    if name == "cut.model":
        content = content[: random_.randrange(len(content))]
    elif name == "flipped.model":
        # In the directory at the end, which every reader needs.
        content[-random_.randrange(1, 22)] ^= 0xFF
    else:
        content = random_.randbytes(40)
    (folder / name).write_bytes(content)
    return f"--{flag}={folder / name}"


def test_broken_commands(forked, tmp_path):
    random_ = random.Random(0 if not COMMANDS else None)
    for number in range(COMMANDS or 6):
        flags = random_.sample(WRONG, random_.randrange(1, 4))
        if random_.random() < 0.5:
            flags = [broken_file(random_, tmp_path), "--channels=3,4", "--height=8"]
        workdir = tmp_path / f"run_{number}"
        words = ("train.py", f"--workdir={workdir}", "--updates=1", *flags)
        done = forked(*words, status=2)
        assert len(done.stderr.strip().splitlines()) == 1, (flags, done.stderr)
        assert not workdir.exists(), flags
