"""Finds weights that hold each other's numbers, by the names on both sides.

`compare_trees` pairs weights by their numbers. If `h_0` here has the numbers of `h.1`
there, and `h_1` those of `h.0`, a conversion has exchanged them. A name belongs to one
there if they agree but for what stands before them, if most layers pair such names
(`query` and `q`), if most layers of two such names have the same numbers (`layers_1`
and `h.1`), or if one of them is a layer of a stack and the numbers of the others
ascend. Weights are exchanged where these names lead in a circle. So names that only
count from another number are no exchange, nor are layers that count from the other end.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prednet_jax.noise.questions.names import canonical

# What frameworks call a weight, the last part of a name.
_WEIGHT = frozenset({"kernel", "weight", "w", "scale", "gamma", "embedding"})
_BIAS = frozenset({"bias", "b", "beta"})
# An exchange of two layers reverses up to three, but no four.
REVERSED = 4


class _Address(NamedTuple):
    """A name apart from its numbers.

    Attributes:
        text: the letters of its parts without the last, `weight` or `bias`, and the
            number of the block.
        is_bias: whether it is a bias.
        numbers: the numbers in the name.
        array: the name of the array of which it is a block, or "".
        block: the number of the block.
    """

    text: str
    is_bias: bool
    numbers: tuple[int, ...]
    array: str
    block: int

    @property
    def kind(self) -> tuple[str, bool]:
        return self.text, self.is_bias


def exchanged(
    pairs: Sequence[tuple[str, str]], sizes: Sequence[int], stacked: Sequence[bool]
) -> tuple[dict[int, int], set[int]]:
    """Returns for each pair in an exchange the pair whose reference its name says.

    The pairs of layers that are numbered from the other end are no exchange. They come
    second.

    Args:
        pairs: the names here and there that were paired by their numbers.
        sizes: how many numbers each pair has.
        stacked: for each pair whether one of the two is a layer of a stack.
    """
    here, there = ([_address(pair[side]) for pair in pairs] for side in (0, 1))
    only, back = _only_agreeing(here, there, sizes), _only_agreeing(there, here, sizes)
    agreeing = {i: j for i, j in only.items() if back.get(j) == i}
    named = _by_number(here, there) | _by_most(here, there) | agreeing
    named |= _by_layer(here, there, stacked)
    named |= {j: i for i, j in _by_layer(there, here, stacked).items()}
    swaps, turned = {}, _from_other_end(here, there)
    for i in named.keys() - turned:
        j, seen = named[i], {i}
        while j not in seen:
            seen.add(j)
            j = named.get(j, j)
        if j == i != named[i]:
            swaps[i] = named[i]
    return swaps, turned


def _only_agreeing(
    ones: Sequence[_Address], others: Sequence[_Address], sizes: Sequence[int]
) -> dict[int, int]:
    """Returns for each name the only one of the others that agrees with it."""
    # The numbers of one name end those of the other.
    exact, ends = defaultdict(list), defaultdict(list)
    for j, b in enumerate(others):
        exact[sizes[j], b.numbers].append(j)
        for k in range(len(b.numbers) + 1):
            ends[sizes[j], b.numbers[k:]].append(j)
    only = {}
    for i, a in enumerate(ones):
        shorter = (exact[sizes[i], a.numbers[k + 1 :]] for k in range(len(a.numbers)))
        near = itertools.chain(ends[sizes[i], a.numbers], *shorter)
        fits = [*itertools.islice((j for j in near if _agree(a, others[j])), 2)]
        if len(fits) == 1:
            only[i] = fits[0]
    return only


def _agree(a: _Address, b: _Address) -> bool:
    """Returns whether two names agree, apart from what stands before one of them."""
    if a.is_bias != b.is_bias or a.array or b.array:
        return False
    count = min(len(a.numbers), len(b.numbers))
    same = all(x == y for x, y in zip(_last(a, count), _last(b, count), strict=True))
    short, long = sorted((a.text, b.text), key=len)
    return same and bool(short) and long.endswith(short)


def _last(address: _Address, count: int) -> Iterable[int]:
    return address.numbers[len(address.numbers) - count :]


def _by_most(here: Sequence[_Address], there: Sequence[_Address]) -> dict[int, int]:
    """Returns the pair whose name there is the one that most layers have."""
    votes: dict[tuple, Counter] = defaultdict(Counter)
    places = defaultdict(list)
    for i, (a, b) in enumerate(zip(here, there, strict=True)):
        votes[a.kind][b.kind] += 1
        places[b.kind, b.numbers].append(i)
    named = {}
    for i, (a, b) in enumerate(zip(here, there, strict=True)):
        ((most, count),) = votes[a.kind].most_common(1)
        if count > votes[a.kind][b.kind] and len(places[most, b.numbers]) == 1:
            (named[i],) = places[most, b.numbers]
    return named


def _by_number(here: Sequence[_Address], there: Sequence[_Address]) -> dict[int, int]:
    """Returns the pair with the same numbers there, if most layers of a kind have them.

    The names may have no word in common.
    """
    groups = defaultdict(list)
    for i, (a, b) in enumerate(zip(here, there, strict=True)):
        groups[a.kind, b.kind].append(i)
    named: dict[int, int] = {}
    for group in groups.values():
        same = [i for i in group if here[i].numbers == there[i].numbers]
        if len(same) > len(group) / 2:
            places = {there[i].numbers: i for i in group}
            named |= {i: places.get(here[i].numbers, i) for i in group}
    return named


def _from_other_end(here: Sequence[_Address], there: Sequence[_Address]) -> set[int]:
    """Returns the pairs of layers that are numbered in reverse on one side.

    The blocks of a decoder, for instance, may count from either end.
    """
    groups = defaultdict(list)
    for i, (a, b) in enumerate(zip(here, there, strict=True)):
        count = 0 if a.array or b.array else min(len(a.numbers), len(b.numbers))
        x, y = tuple(_last(a, count)), tuple(_last(b, count))
        for k in range(count):
            other_numbers = (*x[:k], *x[k + 1 :])
            if other_numbers == (*y[:k], *y[k + 1 :]):
                groups[a.kind, b.kind, k, other_numbers].append((x[k], y[k], i))
    reversed_pairs: set[int] = set()
    for group in groups.values():
        theirs = [y for _, y, _ in sorted(group)]
        if len(group) >= REVERSED and theirs == sorted(theirs, reverse=True):
            reversed_pairs.update(i for *_, i in group)
    return reversed_pairs


def _by_layer(
    blocks: Sequence[_Address], others: Sequence[_Address], stacked: Sequence[bool]
) -> dict[int, int]:
    """Returns the pair with the next larger numbers for each next layer of a stack."""
    groups = defaultdict(list)
    for i, block in enumerate(blocks):
        if block.array and stacked[i]:
            groups[block.array].append(i)
    named: dict[int, int] = {}
    for group in groups.values():
        if len({others[i].kind for i in group}) == 1:
            ordered = sorted(group, key=lambda i: blocks[i].block)
            ascending = sorted(group, key=lambda i: others[i].numbers)
            named |= zip(ordered, ascending, strict=True)
    return named


def _address(name: str) -> _Address:
    block = re.search(r"\[block (\d+) of \d+\]$", name)
    array = name[: block.start()] if block else ""
    parts = canonical(array or name)
    is_bias = bool(parts) and parts[-1] in _BIAS
    if len(parts) > 1 and parts[-1] in _WEIGHT | _BIAS:
        parts = parts[:-1]
    numbers = tuple(map(int, re.findall(r"\d+", ".".join(parts))))
    text = re.sub(r"\d+", "", "".join(parts))
    if block is None:
        return _Address(text, is_bias, numbers, "", 0)
    return _Address(f"{text}[{block[1]}]", is_bias, numbers, array, int(block[1]))
