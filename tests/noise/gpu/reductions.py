"""Sums for GPUs: what is compiled, in one process for all, and what it adds.

python tests/noise/gpu/reductions.py golden     # writes the golden set again
python tests/noise/gpu/reductions.py all        # checks all 216
python tests/noise/gpu/reductions.py h200       # compares with what an H200 computed
"""

import gzip
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.gpu import compilation, replay

GOLDEN = Path(__file__).parents[2] / "golden" / "gpu" / "reductions.json.gz"
# Results of all cases on an H200 (XLA of jax 0.11.2), and which of them were made by
# kernels of Triton: `jax.jit(case.compiled_sum)(*case.drawn(0))`.
H200 = GOLDEN.with_name("h200_sums.npz")
# sm_61, sm_75, sm_90.
GPUS = ("gtx1080", "rtx2080ti", "h100")


def same(x):
    return x


def squares(x):
    return x * x


def squared_errors(x, y):
    return (x - y) * (x - y)


def magnitudes(x):
    return abs(x)


def widened(x):
    return x.astype(np.float32)


class Case(NamedTuple):
    """A sum: `term` of arrays, over axes; `term` is for JAX and NumPy."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    term: Callable[..., Any] = same
    dtype: str = "float32"

    @property
    def name(self) -> str:
        shape, axes = ("x".join(map(str, t)) for t in (self.shape, self.axes))
        return f"{self.term.__name__}_{shape}_over_{axes}"

    @property
    def arguments(self) -> int:
        return self.term.__code__.co_argcount

    def compiled_sum(self, *arrays):
        return lax.reduce_sum(self.term(*arrays), self.axes)

    def drawn(self, seed) -> list[np.ndarray]:
        """Arguments other than those that the order is read with."""
        x = np.random.default_rng(seed).normal(size=(self.arguments, *self.shape))
        return list(x.astype(jnp.dtype(self.dtype)))

    def columns(self, arrays) -> np.ndarray:
        """The terms [terms, outputs]."""
        terms = np.moveaxis(self.term(*arrays), self.axes, range(len(self.axes)))
        return terms.reshape(-1, np.prod(terms.shape[len(self.axes) :], dtype=int))

    def read(self, compiled: compilation.Compiled) -> replay.Schedule:
        """The order; `read` raises unless its sums have the kernel's bits."""
        return replay.read(replay.assemble(compiled), self.shape, self.axes)


ROWS = [(64, 3000), (7, 100), (1000, 8), (300, 33), (5, 4099), (2, 20000), (513, 64)]
COLUMNS = [(3000, 64), (100, 7), (500, 1000), (33, 300), (4099, 5), (64, 513), (8, 96)]
WHOLE = [(100,), (999,), (4096,), (70001,), (24, 32, 3), (64, 1024)]
INNER = [((5, 70, 24), (1,)), ((5, 70, 24), (0, 2)), ((3, 4, 50, 6), (0, 2))]
# PredNet's own: at 24x32 with channels 3, 6, 12, window 10.
PREDNET = [
    *[((1, 24, 32, c), (1, 2)) for c in (3, 6, 12)],
    *[((1, 12, 16, c), (1, 2)) for c in (6, 12, 24)],
    *[((1, 6, 8, c), (1, 2)) for c in (12, 48)],
    ((10, 1, 24, 32, 3), (1, 2, 3, 4)),
    ((10,), (0,)),
]
CASES = [
    *[Case(shape, (1,)) for shape in ROWS],
    *[Case(shape, (0,)) for shape in COLUMNS],
    *[Case(shape, tuple(range(len(shape)))) for shape in WHOLE],
    *[Case(*each) for each in (*INNER, *PREDNET)],
    *[
        Case(shape, axes, term)
        for term in (squares, squared_errors, magnitudes)
        for shape, axes in [
            ((64, 3000), (1,)),
            ((300, 33), (1,)),
            ((3000, 64), (0,)),
            ((33, 300), (0,)),
            ((4096,), (0,)),
            ((70001,), (0,)),
            ((5, 70, 24), (0, 2)),
            ((10, 1, 24, 32, 3), (1, 2, 3, 4)),
        ]
    ],
    *[Case(shape, (1,), widened, "bfloat16") for shape in ROWS],
    *[Case(shape, (0,), widened, "bfloat16") for shape in (*COLUMNS, (4096,))],
]


def compile_all(cases, gpu: str) -> dict[Case, compilation.Compiled]:
    modules = []
    for case in cases:
        shape = jax.ShapeDtypeStruct(case.shape, case.dtype)
        modules.append(compilation.lower(case.compiled_sum, *[shape] * case.arguments))
    return dict(zip(cases, compilation.compiled_for(modules, gpu), strict=True))


def as_on_h200(compiled: dict[Case, compilation.Compiled]) -> dict[str, bool]:
    """Whether the order of each kernel gives the bits that an H200 computed."""
    with np.load(H200) as there:
        return {
            case.name: np.array_equal(
                case.read(each).sum(case.columns(case.drawn(0))),
                there[case.name].ravel(),
            )
            for case, each in compiled.items()
        }


def of_triton() -> set[str]:
    """The cases for which the H200 took a kernel of Triton."""
    with np.load(H200) as there:
        return set(there["triton"].tolist())


def interpreted(compiled: compilation.Compiled, arrays) -> np.ndarray:
    program = replay.assemble(compiled)
    return program.run(program.memory(arrays))


# Of the golden set: each kind of kernel once.
CHOSEN = [
    Case((5, 4099), (1,)),
    Case((1000, 8), (1,)),
    Case((100, 7), (0,)),
    Case((4099, 5), (0,)),
    Case((70001,), (0,)),
    Case((5, 70, 24), (0, 2)),
    Case((1, 24, 32, 12), (1, 2)),
    Case((64, 3000), (1,)),
    Case((10, 1, 24, 32, 3), (1, 2, 3, 4), squared_errors),
    Case((64, 3000), (1,), widened, "bfloat16"),
]


def golden() -> dict[tuple[str, Case], compilation.Compiled]:
    cases = {case.name: case for case in CHOSEN}
    found = {}
    for gpu, entries in json.loads(gzip.decompress(GOLDEN.read_bytes())).items():
        for name, entry in entries.items():
            entry["launches"] = tuple(
                compilation.KernelLaunch(
                    *(tuple(x) if isinstance(x, list) else x for x in each)
                )
                for each in entry["launches"]
            )
            compiled = compilation.Compiled(**entry, memory={}, cost={})
            found[gpu, cases[name]] = compiled
    return found


def _short(compiled: compilation.Compiled) -> dict[str, Any]:
    entry = compiled.hlo[compiled.hlo.index("\nENTRY ") :]
    entry = re.sub(r", (sharding|metadata|frontend_attributes)=\{.*", "", entry)
    return {"hlo": entry, "ptx": compiled.ptx, "launches": compiled.launches}


if __name__ == "__main__":
    if sys.argv[1:] == ["golden"]:
        texts = {
            gpu: {c.name: _short(x) for c, x in compile_all(CHOSEN, gpu).items()}
            for gpu in GPUS
        }
        GOLDEN.write_bytes(gzip.compress(json.dumps(texts).encode(), mtime=0))
    elif sys.argv[1:] == ["all"]:
        count = 0
        for gpu in GPUS:
            for case, compiled in compile_all(CASES, gpu).items():
                try:
                    schedule = case.read(compiled)
                except NoiseError as error:
                    print(gpu, case.name, error)
                    continue
                x = case.drawn(0)
                equal = schedule.sum(case.columns(x)) == interpreted(compiled, x)
                count += bool(equal.all())
                print(gpu, case.name, schedule, "" if equal.all() else "OTHER BITS")
        print(
            f"{count} of {len(GPUS) * len(CASES)} sums: the replay has the bits of the "
            "interpreted kernel"
        )
    elif sys.argv[1:] == ["h200"]:
        same = as_on_h200(compile_all(CASES, "h100"))
        for kernels in (set(same) - of_triton(), of_triton()):
            print(sum(same[name] for name in kernels), "of", len(kernels))
    else:
        sys.exit("expected golden, all or h200")
