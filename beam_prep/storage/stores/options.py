"""Beam's options for stores, on their way to workers."""

from dataclasses import dataclass
from typing import Any

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions


@dataclass(frozen=True)
class StoreOptions:
    """Beam's options for stores, for workers that Beam does not tell them: a pool's, and those of the local runner.

    They take effect where one of these is unpickled.
    """

    given: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def current(cls) -> "StoreOptions":
        """Those of this process."""
        found = FileSystems._pipeline_options
        every = {} if found is None else found.get_all_options(drop_default=True)
        mine = ("project", "impersonate_service_account")
        return cls(tuple((k, v) for k, v in sorted(every.items()) if k.startswith("s3_") or k in mine))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.given,)


def _restored(given: tuple[tuple[str, Any], ...]) -> StoreOptions:
    here = dict(StoreOptions.current().given) if given else {}  # Beam takes its time to say
    if any(here.get(name) != value for name, value in given):
        FileSystems.set_options(PipelineOptions.from_dictionary({**here, **dict(given)}))
    return StoreOptions(given)
