"""Matches names of arrays on two sides."""

import difflib
import functools
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from prednet_jax.noise import files
from prednet_jax.noise.arguments import is_mutable
from prednet_jax.noise.errors import NoiseError
from prednet_jax.noise.leaves import as_array, given_array
from prednet_jax.noise.tables import shortened


def read_arrays(what: str, path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file by name, or raises a NoiseError."""
    try:
        with files.open_binary(path) as file, np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
            # JAX takes numbers in the order of this machine. A text has no dtype.
            arrays = {
                n: x.astype(x.dtype.newbyteorder("="), copy=False)
                for n, x in arrays.items()
            }
    except Exception as error:  # NumPy, zipfile and zlib have different exceptions.
        why = getattr(error, "strerror", None) or "it is not such a file, or damaged"
        raise NoiseError(
            f"{what}={path}: expected a file of arrays as numpy.savez writes it ({why})"
        ) from None
    for name, x in arrays.items():
        # NumPy writes what is no type of its own as bytes. JAX has no types of more
        # than 64 bits for a real number.
        if x.dtype.kind not in "biufc" or x.real.dtype.itemsize > 8:
            raise NoiseError(
                f"{what}={path}: {name} is of type {x.dtype}: expected numbers of at "
                "most 64 bits; save bfloat16 as float32, and convert it where it is "
                "used"
            )
    return arrays


def arrays_of(what: str, given: object) -> dict[str, np.ndarray]:
    """Returns arrays by name, of a mapping, also a nested one, or an .npz file."""
    if isinstance(given, str | os.PathLike):
        given = read_arrays(what, given)
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise NoiseError(f"{what}: {kind}: expected arrays by name, or an .npz file")
    if any(isinstance(x, Mapping) for x in given.values()):
        leaves = list(_nested(given))
        short = leaf_names([keys for keys, _ in leaves])
        given = dict(zip(short, (x for _, x in leaves), strict=True))
    if not given:
        raise NoiseError(f"{what}: empty: expected arrays by name")
    arrays = {}
    for name, x in given.items():
        label, x = f"{what}: {name}", _array_inside(x)
        if isinstance(x, list | tuple):
            x = given_array(x, label, "an array")
        arrays[str(name)] = as_array(x, label)
    return arrays


def _array_inside(value: object) -> object:
    """Returns the array of a variable of Flax NNX, and any other value unchanged."""
    arrays = jax.tree.leaves(value) if is_mutable(value) else ()
    return arrays[0] if len(arrays) == 1 else value


def _nested(
    tree: object, keys: tuple[object, ...] = ()
) -> Iterator[tuple[tuple[object, ...], object]]:
    """Yields the path and the value of each leaf of nested mappings, in their order."""
    for key, x in tree.items() if isinstance(tree, Mapping) else ():
        yield from _nested(x, (*keys, key))
    if not isinstance(tree, Mapping):
        yield keys, tree


def _key_text(key: object) -> str:
    """Returns a key of a pytree path as text."""
    for kind in ("key", "name", "idx"):
        if hasattr(key, kind):
            return str(getattr(key, kind))
    return str(key)


def path_name(keys: Sequence[object]) -> str:
    """Returns a leaf's path in a pytree, with slashes."""
    # Flax NNX wraps an array in a variable with a value.
    parts = [_key_text(key) for key in keys if getattr(key, "name", "") != "value"]
    is_named = any(not part.isdecimal() for part in parts)
    return "/".join(parts if is_named else ["result", *parts])


def leaf_names(paths: Sequence[Sequence[object]]) -> list[str]:
    """Returns the names of leaves: paths without the parts that frameworks add.

    Leaves that would have one name (layers in a list) have their whole paths.
    """
    short = [_leaf_name(keys) for keys in paths]
    repeated = {name for name, count in Counter(short).items() if count > 1}
    return [
        path_name(keys) if name in repeated else name
        for name, keys in zip(short, paths, strict=True)
    ]


def _leaf_name(keys: Sequence[object]) -> str:
    parts = [_key_text(key) for key in keys if getattr(key, "name", "") != "value"]
    start = next((i for i, p in enumerate(parts) if not p.isdecimal()), None)
    if start is None:
        return "/".join(["result", *parts])
    # A place in (result, intermediates), and the first of a sown tuple, have no name.
    parts = parts[start:-1] if parts[-1] == "0" else parts[start:]
    kept = [p for p in parts if p not in ("intermediates", "__call__")]
    return "/".join(kept) or "result"


def canonical(name: str) -> tuple[str, ...]:
    """Splits a name into parts, each with its letters and digits in lower case."""
    parts = re.split(r"[./\[\]:~]+", name.lower())
    return tuple(filter(None, (re.sub(r"[^a-z0-9]", "", part) for part in parts)))


def match(
    here: Sequence[str], there: Sequence[str], names: Mapping[str, str]
) -> dict[str, str]:
    """Returns for names here the names there: as given, equal, or equal at the end.

    Raises:
        NoiseError: a given name is on neither side, or no two names belong together.
    """
    for given, known, side in (
        (names.keys(), here, "here"),
        (names.values(), there, "in the reference"),
    ):
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0)
                raise NoiseError(
                    f"names: {name!r} is not {side}: expected one of "
                    f"{shortened(known, 8)}; the nearest is {near[0]!r}"
                )
    pairs = dict(names)
    taken_there = set(names.values())
    mine = {n: canonical(n) for n in here if n not in names}
    yours = {n: canonical(n) for n in there if n not in taken_there}
    for same in (lambda a, b: "".join(a) == "".join(b), _ends_with):
        fits = {n: [t for t, b in yours.items() if same(a, b)] for n, a in mine.items()}
        taken = [t for candidates in fits.values() for t in candidates]
        for name, candidates in fits.items():
            if len(candidates) == 1 and taken.count(candidates[0]) == 1:
                pairs[name] = candidates[0]
                del mine[name], yours[candidates[0]]
    if not pairs:
        both = [(a, b) for a in here for b in there]
        closest = max(both, key=lambda pair: similarity(*pair))
        flag = f"--names={'='.join(closest)} in a shell"
        raise NoiseError(
            f"no name in common: here {shortened(here, 8)}; in the reference "
            f"{shortened(there, 8)}; expected some, or names={{here: there}}, such as "
            f"names={dict([closest])} ({flag})"
        )
    return pairs


def similarity(a: str, b: str) -> float:
    """Returns how many pairs of letters two texts have in common, from 0 to 1.

    It is the coefficient of Dice. An alignment of the texts takes 50 times as long.
    """
    x, y = _letter_pairs(a), _letter_pairs(b)
    return 2 * len(x & y) / (len(x) + len(y))


@functools.lru_cache(maxsize=100_000)
def _letter_pairs(text: str) -> frozenset[tuple[str, str]]:
    return frozenset(itertools.pairwise(f" {text} "))


def _ends_with(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Returns whether one name is the end of the other."""
    long, short = sorted((a, b), key=len, reverse=True)
    end = "".join(short)
    return bool(end) and any("".join(long[i:]) == end for i in range(len(long)))
