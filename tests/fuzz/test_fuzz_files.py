"""Broken files of every kind: read, or refused with a `UserError` on one line.

Any other exception fails the test. FUZZ=N tries N thousand inputs (`make fuzz`).
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from prednet_jax import data, records, weights
from prednet_jax.data import images
from prednet_jax.training.runs import begun
from prednet_jax.weights.runs import load_run

sys.path.insert(0, str(Path(__file__).parent))
from fuzzing import amount, edited, refused_on_one_line

GOLDEN = Path(__file__).parents[1] / "golden"
CHAINER = GOLDEN / "chainer_tiny" / "initial.model.npz"
PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with some pictures and a list."""
    root = tmp_path_factory.mktemp("fuzz")
    for i in range(3):
        Image.fromarray(PIXELS).save(root / f"{i}.png")
    (root / "inner.txt").write_text("0.png\n1.png\n")
    return root


def saved(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def encoded(suffix, **options):
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, suffix, **options)
    return buffer.getvalue()


def opened(path, content):
    """Reads frames from what is written to a path, which may be refused."""
    path.write_bytes(content)
    with refused_on_one_line():
        source = data.open_source(str(path), height=8, width=8)
        frames = source.read(0, min(source.length, 3))
        assert frames.dtype == np.uint8
        assert frames.shape[1:] == (8, 8, 3)


LINES = st.one_of(
    st.sampled_from(["0.png", "1.png", "./2.png", "inner.txt", "list.txt", "..", "/"]),
    st.sampled_from(["/etc/passwd", "../../../etc/shadow", "/dev/zero", "a" * 300]),
    st.text(max_size=20),
)


@amount(250)
@given(
    lines=st.lists(LINES, max_size=4),
    end=st.sampled_from(["\n", "\r\n", "\r", "\0"]),
    code=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
)
def test_lists(made, lines, end, code):
    opened(made / "list.txt", end.join(lines).encode(code, "replace"))


FRAMES = saved(frames=np.stack([PIXELS] * 3), boundaries=np.array([0, 2]))


@amount(150)
@given(content=edited([FRAMES]))
def test_bytes_of_an_npz(made, content):
    opened(made / "frames.npz", content)


EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
FORMATS = [
    *map(encoded, ("PNG", "TIFF", "GIF", "BMP", "PPM", "WEBP")),
    encoded("JPEG", exif=EXIF),
    encoded("TIFF", compression="tiff_lzw"),
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 12\nshowpage\n",
]


@amount(200)
@given(content=edited(FORMATS))
@pytest.mark.filterwarnings("ignore")
def test_pictures(content):
    with refused_on_one_line():
        images.read_header(content, "picture")
        assert images.decode(content, "picture").dtype == np.uint8


@amount(40)
@given(content=edited([CHAINER.read_bytes()]))
def test_bytes_of_chainer_weights(made, content):
    path = made / "bytes.model"
    path.write_bytes(content)
    with refused_on_one_line():
        weights.load(path, height=24, width=32)


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


@amount(10)
@given(names=st.data())
def test_arrays_of_chainer_weights(made, names):
    arrays = dict(np.load(CHAINER))
    names_ = st.sampled_from(sorted(arrays)) | st.text("Conv/PLSTMA01W", min_size=1)
    changes = st.dictionaries(names_, st.sampled_from(ARRAYS), min_size=1, max_size=3)
    arrays |= names.draw(changes)
    kept = {name: array for name, array in arrays.items() if array is not None}
    path = made / "arrays.model"
    path.write_bytes(saved(**kept))
    with refused_on_one_line():
        weights.load(path, height=24, width=32)


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
NETWORKS = st.dictionaries(
    st.sampled_from(["channels", "height", "hidden", "x"]), VALUES
)
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
        begun(folder, updates=3, resume=resume, overwrite=False)


NAMES = st.lists(
    st.text("ab/", min_size=1, max_size=4), unique=True, min_size=1, max_size=4
)


@amount(40)
@given(names=NAMES)
def test_trees_of_records(made, names):
    path = made / "tree.npz"
    path.write_bytes(saved(**dict.fromkeys(names, PIXELS)))
    with refused_on_one_line():
        records.read_tree(path)
