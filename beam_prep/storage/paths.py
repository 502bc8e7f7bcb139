"""Paths, of this disk or of an object store."""


def is_local(path: str) -> bool:
    """Whether a path lies on this machine's disk."""
    return "://" not in path
