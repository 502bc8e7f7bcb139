"""Paths on this disk or in an object store."""


def is_local(path: str) -> bool:
    """Tells a path on this machine's disk from one in a store."""
    return "://" not in path
