"""Run an iterator in a thread, a few items ahead of its consumer."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterator[T], ahead: int = 2) -> Iterator[T]:
    """Yield the items of an iterator that a background thread advances.

    The thread starts with the first item asked for. It ends with the iterator, with an
    exception (which is raised here, in its place among the items), or when this
    generator is closed, and is joined in each case.

    Args:
        items: The iterator; only the thread touches it from then on.
        ahead: Items that may wait, beside the one being made.

    Yields:
        The items, in order.
    """
    ready: queue.Queue = queue.Queue(maxsize=ahead)
    closed = threading.Event()

    def put(message: tuple) -> bool:
        # A consumer that is gone takes nothing from a full queue: look up regularly.
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
        except BaseException as error:  # Whatever it is, it belongs to the consumer.
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
