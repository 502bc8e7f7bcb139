"""Beam's options for stores, on their way to workers."""

from dataclasses import dataclass
from typing import Any

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions


@dataclass(frozen=True)
class StoreOptions:
    """Beam's options for stores, for workers that Beam does not tell them: a pool's, and those of the local runner.

    Pickling and unpickling changes nothing in a process. What uses a store on a worker calls `activate` first: the
    `setup` of a DoFn, or `TokenizerFolder.fetch`.
    """

    given: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def current(cls) -> "StoreOptions":
        """Those of this process."""
        found = FileSystems._pipeline_options
        every = {} if found is None else found.get_all_options(drop_default=True)
        mine = ("project", "impersonate_service_account")
        return cls(tuple((k, v) for k, v in sorted(every.items()) if k.startswith("s3_") or k in mine))

    def activate(self) -> None:
        """Makes these the options of this process, for Beam's FileSystems too. Where they are already, nothing changes.

        Beam keeps one set of options in each process, so this is for workers, which work for one job.
        """
        here = dict(StoreOptions.current().given) if self.given else {}  # Beam takes its time to say
        if any(here.get(name) != value for name, value in self.given):
            FileSystems.set_options(PipelineOptions.from_dictionary({**here, **dict(self.given)}))
