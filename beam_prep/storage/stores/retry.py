"""Requests that are made again while a store does not answer."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from beam_prep.errors import StorageError
from beam_prep.storage.stores.client import StoreUnavailable

log = logging.getLogger("beam_prep")

RETRY_SECONDS = 60.0
"""Seconds that a store may be unavailable in the middle of a run."""

_PAUSE, _LONGEST_PAUSE = 0.25, 8.0

T = TypeVar("T")


def with_retries(work: Callable[[], T], path: str) -> T:
    """Calls `work`, again while the store of a path does not answer, for `RETRY_SECONDS` seconds.

    Raises:
        StorageError: the store did not answer for that long.
        Other errors of `work` are passed on.
    """
    began, pause = time.monotonic(), _PAUSE
    while True:
        try:
            return work()
        except StoreUnavailable as error:
            tried = time.monotonic() - began
            if tried + pause > RETRY_SECONDS:
                raise StorageError(
                    f"{path}: the store does not answer, tried for {tried:.0f} s ({error}): check that it is up and "
                    "reachable, and run again; finished blocks are not made again"
                ) from None
            log.info("%s: the store does not answer (%s); trying again", path, error)
        # Random, so that workers do not all try at the same moment.
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE)
