"""Runs an iterator in a background thread, a few items ahead of its consumer."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def prefetch(items: Iterator[T], ahead: int = 2) -> Iterator[T]:
    """Yield the items of an iterator that a background thread advances.

    The thread starts when the first item is requested. It ends when the iterator ends,
    when the iterator raises an exception (which is raised here after the items before
    it), or when this generator is closed. It is joined in each case.

    Args:
        items: The iterator; from then on only the thread may use it.
        ahead: How many finished items may wait.

    Yields:
        The items, in order.
    """
    end: Any = object()
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        waiting = deque(pool.submit(next, items, end) for _ in range(ahead + 1))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
