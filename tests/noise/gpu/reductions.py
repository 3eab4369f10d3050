"""Sums for GPUs: what is compiled, in one process for all, and what it adds.

python tests/noise/gpu/reductions.py golden     # writes the golden set again
python tests/noise/gpu/reductions.py all        # checks all 99
"""

import functools
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.gpu import compilation, replay

GOLDEN = Path(__file__).parents[2] / "golden" / "gpu" / "reductions.json.gz"
# sm_61, sm_75, sm_90.
GPUS = ("gtx1080", "rtx2080ti", "h100")


class Case(NamedTuple):
    """A sum of an array over axes."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def name(self) -> str:
        shape, axes = ("x".join(map(str, t)) for t in (self.shape, self.axes))
        return f"{shape}_over_{axes}"

    def read(self, compiled: compilation.Compiled) -> replay.Schedule:
        """The order, whose sums have the kernel's bits, or `read` raises."""
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
]


def compile_all(cases, gpu: str) -> dict[Case, compilation.Compiled]:
    """Compiles sums for a GPU, all in one process."""
    modules = []
    for case in cases:
        shape = jax.ShapeDtypeStruct(case.shape, jnp.float32)
        fn = functools.partial(lax.reduce_sum, axes=case.axes)
        modules.append(compilation.lower(fn, shape))
    return dict(zip(cases, compilation.compiled_for(modules, gpu), strict=True))


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
]


def golden() -> dict[tuple[str, Case], compilation.Compiled]:
    """The committed set: what was compiled, by GPU and sum."""
    cases = {case.name: case for case in CHOSEN}
    found = {}
    for gpu, entries in json.loads(gzip.decompress(GOLDEN.read_bytes())).items():
        for name, entry in entries.items():
            entry["launches"] = tuple(
                compilation.Launch(
                    *(tuple(x) if isinstance(x, list) else x for x in each)
                )
                for each in entry["launches"]
            )
            compiled = compilation.Compiled(**entry, memory={}, cost={})
            found[gpu, cases[name]] = compiled
    return found


def _short(compiled: compilation.Compiled) -> dict[str, Any]:
    """What the tests read of a compiled sum."""
    entry = compiled.hlo[compiled.hlo.index("\nENTRY ") :]
    entry = re.sub(r", (sharding|metadata|frontend_attributes)=\{.*", "", entry)
    return {
        "hlo": entry,
        "ptx": compiled.ptx,
        "launches": compiled.launches,
        "buffers": compiled.buffers,
    }


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
                count += 1
                print(gpu, case.name, [t.shape for t in schedule.rounds])
        print(
            f"{count} of {len(GPUS) * len(CASES)} sums: the replay has the bits of the "
            "interpreted kernel"
        )
    else:
        sys.exit("expected golden or all")
