"""What Beam logs while it is imported is not shown."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Beam warns of every extra that is not installed ("apitools not found ..."), and no job of ours needs one."""
    root = logging.getLogger()
    root.addFilter(not_of_beam)
    try:
        yield
    finally:
        root.removeFilter(not_of_beam)


def not_of_beam(record: logging.LogRecord) -> bool:
    """A filter of the root logger: drops the records of Beam."""
    return "apache_beam" not in record.pathname
