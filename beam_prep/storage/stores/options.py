"""Beam's options for stores, as workers get them."""

from dataclasses import dataclass
from typing import Any

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, S3Options


def options_here() -> PipelineOptions | None:
    """What `FileSystems.set_options` was given in this process. Beam has no public name for it."""
    given: PipelineOptions | None = FileSystems._pipeline_options
    return given


@dataclass(frozen=True)
class StoreOptions:
    """Beam's options for stores. The workers of a pool and of the local runner do not get them from Beam.

    Pickling and unpickling them changes nothing in a process. What uses a store on a worker calls `activate` first: the
    `setup` of a DoFn, or `TokenizerFolder.fetch`.
    """

    given: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def current(cls) -> "StoreOptions":
        """The options of this process."""
        found = options_here()
        if found is None:
            return cls()
        s3, google = (
            found.view_as(group).get_all_options(drop_default=True, current_only=True)
            for group in (S3Options, GoogleCloudOptions)
        )
        mine = {name: google[name] for name in ("project", "impersonate_service_account") if name in google}
        return cls(tuple(sorted({**mine, **s3}.items())))

    def activate(self) -> None:
        """Makes these the options of this process, if they are not yet. Beam's FileSystems uses them, too.

        Beam keeps one set of options for each process, so this is for workers, which work for one job.
        """
        here = dict(StoreOptions.current().given) if self.given else {}  # slow in Beam
        if any(here.get(name) != value for name, value in self.given):
            FileSystems.set_options(PipelineOptions.from_dictionary({**here, **dict(self.given)}))
