"""Python's garbage collector, switched off where it only costs time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Around code that makes many objects which the block keeps.

    The collector would look through all objects of a block again and again: it takes half of the time of parsing, and
    a third of that of rendering.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
