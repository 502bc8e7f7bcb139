"""The right to write an output: its lock, its claim, its versions, and the files of failed launches."""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from beam_prep.data.block import AnyPath, InputFile
from beam_prep.errors import ConfigError, LockedError, OutputError
from beam_prep.formats.manifest import MANIFEST, RUN, is_manifest, load
from beam_prep.options import RunOptions
from beam_prep.shards.report import how_made
from beam_prep.storage.claims import Claim, Claims
from beam_prep.storage.files import join, remove_folder
from beam_prep.storage.inputs import first_changed
from beam_prep.storage.output import OutputTarget, Staging, normalise_path, output_at, put_back
from beam_prep.storage.publish import same_facts
from beam_prep.storage.stores import is_local, read_bytes
from beam_prep.storage.versions import Versions, check_name, new_name
from beam_prep.tokens.batch import IN_FULL

log = logging.getLogger("beam_prep")

_UNTIL_WORKERS_START = 3600.0
"""Seconds that workers may take to start."""


def manifest_of(output: str) -> dict[str, Any]:
    """The manifest of an existing output."""
    path = join(output, MANIFEST)
    return load(read_bytes(path), path)


def is_within(folder: str | None, outer: str) -> bool:
    """Whether a folder is another one, or lies in it."""
    # With a name behind it, as `normalise_path` takes no bucket alone.
    return folder is not None and normalise_path(f"{folder}/x").startswith(f"{normalise_path(outer)}/")


def folders_of(output_dir: AnyPath, options: RunOptions) -> tuple[str, Staging]:
    """The normalised path of an output, and the folders of a new launch.

    Raises:
        ConfigError: a folder of the options lies in the output, which is replaced as a whole; a path is not UTF-8; or
            see `check_name`.
    """
    output = normalise_path(os.fspath(output_dir))
    for path in (output, options.cache_dir or "", options.staging or ""):
        if path.encode(errors="ignore").decode() != path:  # Arrow cannot open a file below it
            raise ConfigError(f"{path}: this path is not UTF-8: choose another, or rename its folders")
    if options.version_name is not None:
        check_name(options.version_name)
    for name, folder in (("cache_dir", options.cache_dir), ("staging", options.staging)):
        if is_within(folder, output) and options.keep_versions is None:
            raise ConfigError(f"--{name} {folder} lies in the output {output}: give a folder outside of it")
    return output, Staging.beside(output, options.staging)


@dataclass(eq=False)
class OutputClaim:
    """The claim of one launch on an output.

    Attributes:
        root: the output, or the folder of its versions.
        staging: the folder of this launch's unfinished files.
        options, facts, inputs: of the job.
        output: the directory to make: `root`, or a version in it.
        is_taken: True once this launch has taken the claim.
    """

    root: str
    staging: Staging
    options: RunOptions
    facts: Mapping[str, Any]
    inputs: Sequence[InputFile]

    def __post_init__(self) -> None:
        self.output, self.is_taken = self.root, False

    @property
    def claims(self) -> Claims:
        """The claims of all launches on this output."""
        return self.staging.claims(self.root)

    @contextmanager
    def entered(self, dry: bool = False) -> Iterator[str | None]:
        """What a run and a dry run look at first: does another job write, is there anything to do?

        It holds the output's lock, and gives the path of the existing output if it is complete and of this job.

        Args:
            dry: changes nothing.

        Raises:
            OutputError: a folder cannot be written; or the output was made without the requested check.
            LockedError: another job is writing the output.
        """
        with self.claims.locked(dry):
            made = self._made_already(dry)
            if made is None:
                self.claims.check_free()
            yield made

    def _made_already(self, dry: bool) -> str | None:
        keep = self.options.keep_versions
        if keep is None:
            return self.root if self.is_made(self.root) else None
        made = Versions(self.root)
        if not dry:
            made.clean()
        other = self.claims.holder()
        claimed = None if other is None else other.version_name
        # A launch may have been killed before `latest` pointed to its version, so these names are checked, too. Without
        # a `latest` and a claim, an output of this name is no version.
        if claimed is not None and not dry and made.has(claimed):
            made.point(claimed)
        latest = made.latest()
        for name in dict.fromkeys(filter(None, (latest, latest and self.options.version_name, claimed))):
            if self.is_made(made.path(name)):
                if not dry:
                    made.point(name)
                    made.remove_old(keep, name)
                return made.path(name)
        return None

    def is_made(self, output: str) -> bool:
        """True if an output is complete, of this job, and made with the requested check."""
        target = output_at(output, self.staging)
        text = target.manifest()
        if text is None or not is_manifest(text):
            return False
        manifest = load(text, join(output, MANIFEST))
        same = same_facts(manifest, self.facts) and self._same_inputs(target, manifest["inputs"])
        if not same or not target.is_complete(manifest):
            return False
        if self.options.check != "full":
            return True
        run = target.run()
        checked = bool(run) and run.get(IN_FULL) == run.get("blocks")
        if not checked and not self.options.overwrite:
            raise OutputError(
                f"{output} is up to date, but, by its {RUN}, was made without --check full: pass --overwrite to "
                "make it again"
            )
        return checked

    def _same_inputs(self, target: OutputTarget, listed: list[dict[str, Any]]) -> bool:
        mine = [(file.path, file.size) for file in self.inputs]
        if [(entry["path"], entry["size"]) for entry in listed] != mine:
            return False
        return first_changed(self.inputs, listed, target.run) is None

    def finish_for_others(self, output: str) -> None:
        """Finishes what earlier launches left undone, for instance one that was killed after it had published."""
        if not is_local(self.root) and self.claims.holder() is None:
            return
        try:
            self.take(here=True, wait=True)
        except LockedError:
            return  # another job is running
        output_at(output, self.staging).remove_replaced(manifest_of(output))
        self.staging.remove()
        self.release(here=True)

    def choose_version(self) -> str:
        """Chooses the path of the output. The version of a launch that failed keeps its name."""
        if self.options.keep_versions is not None:
            made, other = Versions(self.root), self.claims.holder()
            unfinished = None if other is None or made.has(other.version_name or "") else other.version_name
            name = self.options.version_name or unfinished or new_name()
            if name < (latest := made.latest() or ""):
                found = f"version {name} comes before {latest} by name, so `latest` stays there"
                log.warning("warning: %s; wanted a later --version_name, for instance %s-1", found, latest)
            self.output = made.path(name)
        return self.output

    def take(self, here: bool, wait: bool) -> None:
        """Claims the output.

        Args:
            here: True: the job ends with this process.
            wait: True: this process renews the claim. False: the workers renew it, and may take an hour to start.

        Raises:
            LockedError: another launch holds the output.
        """
        name = None if self.output == self.root else self.output.rpartition("/")[2]
        lease = self.options.lease
        lease = lease if here or wait else max(lease, _UNTIL_WORKERS_START)
        mine = Claim(self.staging.launch, lock=self.claims.lock if here else None, lease=lease, version_name=name)
        other = self.claims.take(mine, is_locked=True)
        self.is_taken = True
        self._remove_others()
        if other is not None:
            if other.version_name is not None:
                self._clear_up(other.version_name)
            self.claims.update(version_name=name)

    def _remove_others(self) -> None:
        """Removes the unfinished files of all other launches, because none of them has the claim."""
        if is_local(self.root):
            put_back(self.output, self.staging.home)
        self.staging.remove_others()

    def _clear_up(self, version_name: str) -> None:
        """Removes what a failed launch left of its version, or of what it replaced, if it was published."""
        made = Versions(self.root)
        output = made.path(version_name)
        if not made.has(version_name):
            if not is_local(output):
                remove_folder(output)
            return
        output_at(output, self.staging).remove_replaced(manifest_of(output))

    def check(self) -> None:
        """Raises LockedError if this launch had the claim, and another has taken it."""
        if self.is_taken:
            output_at(self.output, self.staging).check_claim()

    def fails(self) -> None:
        """Ends the claim of a job that has failed. In a store its file stays: the output holds files of this job."""
        if not self.is_taken:
            return
        if is_local(self.root):
            self.claims.release()
        else:
            self.claims.end()

    def release(self, here: bool) -> None:
        """Ends the claim of a finished job, and removes its blocks unless they are kept."""
        # A job that may outlive its launcher ends its own claim. A launch that takes over the claim cleans up, too.
        if here or self.claims.update(lease=self.options.lease, renewed=time.time()):
            # Blocks of an earlier launch go, too, even if this one has a --cache_dir, unless that is their folder.
            if not is_within(self.options.cache_dir, self.staging.root):
                self.staging.remove_kept()
            self.claims.release()

    def say_how_made(self, said: int) -> None:
        """Logs what `run.json` says of the run, without its first `said` warnings, which are logged already."""
        run = output_at(self.output, self.staging).run()
        log.info("%s", how_made(run))
        for warning in run["warnings"][said:]:
            log.warning("warning: %s", warning)
