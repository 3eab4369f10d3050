"""Runs an iterator in a background thread, a few items ahead of its consumer."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

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
    ready: queue.Queue = queue.Queue(maxsize=ahead)
    closed = threading.Event()

    def put(message: tuple) -> bool:
        # A timeout, since a consumer that has gone never empties a full queue.
        while not closed.is_set():
            try:
                ready.put(message, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
        except BaseException as error:  # The consumer raises it.
            put((None, error))
        else:
            put((None, StopIteration))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, end = ready.get()
            if end is StopIteration:
                return
            if end is not None:
                raise end
            yield item
    finally:
        closed.set()
        thread.join()
