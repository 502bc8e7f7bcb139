"""Paths on this disk or in an object store."""

import os


def is_local(path: str) -> bool:
    """Tells a path on this machine's disk from one in a store."""
    return "://" not in path


def shortened(name: str) -> str:
    """A name of a file with room for an ending: names have 255 bytes at most. Only long ones are cut."""
    return os.fsencode(name)[:_LONGEST].decode("utf-8", "ignore")


_LONGEST = 200
