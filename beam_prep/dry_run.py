"""A dry run: which blocks a run would tokenise, and why; what would become of the output; the room that is needed."""

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich import filesize

from beam_prep import recipe
from beam_prep.data.block import Origin, Split
from beam_prep.errors import OutputError, TokenCacheError
from beam_prep.first_records import free_bytes, lacks_room, sizes
from beam_prep.hints import shortened
from beam_prep.pipeline import Pipeline
from beam_prep.storage.files import join
from beam_prep.storage.inputs import blocks_of, split_file
from beam_prep.storage.publish import EarlierOutput, earlier_path
from beam_prep.storage.stores import is_local
from beam_prep.storage.token_cache import TokenCache
from beam_prep.storage.versions import new_name

NEW, DAMAGED, UNTRUSTED = "not in the token cache", "damaged", "made in a way that this run does not trust"
"""The reasons to tokenise a block."""
_FILES_NAMED = 5


def dry_run(job: Pipeline) -> list[str]:
    """What `job.run()` would do, as text for people.

    Reads the inputs, the token cache and the manifest of the existing output, and tokenises the first records to
    estimate sizes.
    """
    output, options = job.output, job.options
    earlier = EarlierOutput(earlier_path(job.root, options.keep_versions)).manifest
    lines = [f"{output} would be {'made' if earlier is None else 'replaced'}"]
    if options.keep_versions is not None:
        lines = [f"a new version of {output} would be made"]
    try:
        with job.claim().entered(dry=True) as made:
            if made is not None:
                return [f"{output} is up to date: nothing would be done"]
            _check_output(job)
    except OutputError as error:
        lines = [f"the run would be refused: {error}"]
    lines += [] if earlier is None else [f"  {fact}" for fact in _changes(earlier, job.facts)]
    token_cache = job.cache_of_run()
    splits = [split for place in enumerate(job.inputs) for split in split_file(place, options.block_bytes)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        of_splits = pool.map(lambda split: _blocks(split, job, token_cache), splits)
        blocks = [block for blocks in of_splits for block in blocks]
    to_do = {token_cache.digest(origin): (origin, why) for origin, why in blocks if why is not None}
    reused = len(blocks) - len(to_do)
    lines.append(f"blocks: {len(blocks):,}; {reused:,} are in the token cache, {len(to_do):,} would be tokenised")
    lines += [f"  {count:,}: {reason}" for reason, count in Counter(why for _, why in to_do.values()).items()]
    files = Counter(origin.source.path for origin, _ in to_do.values())
    lines += [f"  {count:,} of {path}" for path, count in list(files.items())[:_FILES_NAMED]]
    lines += [f"  ... of {len(files):,} files"] if len(files) > _FILES_NAMED else []
    cached, written = sizes(job.config, job.tokenizer, job.inputs, options.max_reject_chars)
    cached *= sum(origin.bytes for origin, _ in to_do.values())
    written *= sum(origin.bytes for origin, _ in blocks)
    needs = [(token_cache.folder, "token cache", cached), (os.path.dirname(output), "output", written)]
    for folder, what, size in needs:
        there = f" ({filesize.decimal(free_bytes(folder))} are free)" if is_local(folder) else ""
        lines.append(f"{what}: at most about {filesize.decimal(int(size))} would be written{there}")
    return lines + lacks_room(need for need in needs if is_local(need[0]))


def _check_output(job: Pipeline) -> None:
    """Raises OutputError if the job may not write its output."""
    keep, output = job.options.keep_versions, job.output
    output = output if keep is None else join(output, job.options.version_name or new_name())
    more = {"overwrite": job.options.overwrite, "keep_versions": keep, "token_cache": job.cache_of_run()}
    recipe.shard(job.config, job.tokenizer, output, staging=job.staging, facts=job.facts, **more)


def _blocks(split: Split, job: Pipeline, token_cache: TokenCache) -> list[tuple[Origin, str | None]]:
    """The blocks of a split, and why each would be tokenised, see `_why`."""
    found = blocks_of(split, job.options.block_bytes, job.options.max_line_bytes)
    return [(origin, _why(origin, token_cache)) for _, origin in found]


def _why(origin: Origin, token_cache: TokenCache) -> str | None:
    """The reason to tokenise a block; None: the token cache has it."""
    digest = token_cache.digest(origin)
    try:
        receipt = token_cache.find(digest)
    except TokenCacheError:
        return DAMAGED
    if receipt is None:
        return NEW
    return None if token_cache.trust.holds(receipt.counts("made")) else UNTRUSTED


def _changes(old: Any, new: Any, place: str = "") -> list[str]:
    """The facts of a job that differ from those of a manifest, a line for each."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        # A manifest has more entries than facts.
        names = [*new, *(name for name in old if name not in new and place)]
        return [
            line
            for name in names
            for line in _changes(old.get(name), new.get(name), f"{place}.{name}" if place else str(name))
        ]
    return [] if old == new else [f"{place}: {shortened(repr(old), 60)} -> {shortened(repr(new), 60)}"]
