"""A dry run: which blocks a run would tokenise, and why; which shards would stay; how much room it would need."""

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from beam_prep import recipe
from beam_prep.data.block import Origin, Split
from beam_prep.data.hashing import tree_digest
from beam_prep.data.receipts import BlockReceipt
from beam_prep.errors import TokenCacheError
from beam_prep.pipeline import Pipeline
from beam_prep.room import free_bytes, sizes
from beam_prep.shards.layout import CUT
from beam_prep.shards.receipts import Receipts, pack_receipts, placed
from beam_prep.shards.row_index import RowIndexes
from beam_prep.shards.slices import Shards, first_items, shard_borders
from beam_prep.storage.output import output_at
from beam_prep.storage.publish import same_facts
from beam_prep.storage.reuse import EarlierOutput, ShardKeys
from beam_prep.storage.splits import blocks_of, split_file
from beam_prep.storage.stores.client import is_local
from beam_prep.storage.token_cache import TokenCache
from beam_prep.storage.versions import Versions

NEW, OTHER_FACTS, DAMAGED, UNTRUSTED = (
    "new content",
    "made with other facts",
    "damaged",
    "made in a way that this run does not trust",
)
"""The reasons to tokenise a block."""
_FILES_NAMED = 5


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the input: its origin, and its receipt in the token cache or the reason not to use it."""

    origin: Origin
    receipt: BlockReceipt | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would do.

    Attributes:
        output: the path of its output.
        state: `up to date`, `new`, `version`, `replaced`, or `refused`: an output exists, and may not be replaced.
        changed: facts that differ from those of the existing output: `config.output.dtype: X -> Y`.
        blocks, reused: number of blocks of the input, and of those in the token cache.
        bytes_to_do: bytes of input to tokenise.
        reasons: reason -> number of blocks to tokenise.
        files: file -> number of its blocks to tokenise.
        shards: number of shards of the existing output; None: they have no keys.
        shards_linked: number of those shards that stay, as far as known before blocks are tokenised.
        cache_bytes, output_bytes: bytes to write, about.
        cache_free, output_free: free bytes on these disks; None in a store.
    """

    output: str
    state: str
    changed: list[str]
    blocks: int
    reused: int
    bytes_to_do: int
    reasons: dict[str, int]
    files: dict[str, int]
    shards: int | None
    shards_linked: int
    cache_bytes: int
    output_bytes: int
    cache_free: int | None
    output_free: int | None

    def lines(self) -> list[str]:
        """The result as text for people."""
        if self.state == "up to date":
            return [f"{self.output} is up to date: nothing would be done"]
        found = {
            "new": f"{self.output} would be made",
            "version": f"a new version of {self.output} would be made",
            "replaced": f"{self.output} would be replaced",
            "refused": f"{self.output} is there, and the run would be refused: pass --overwrite, or choose another -o",
        }
        lines = [found[self.state]]
        lines += [f"  {fact}" for fact in self.changed]
        made = self.blocks - self.reused
        lines.append(f"blocks: {self.blocks:,}; {self.reused:,} are in the token cache, {made:,} would be tokenised")
        lines += [f"  {count:,}: {reason}" for reason, count in self.reasons.items()]
        lines += [f"  {count:,} of {path}" for path, count in list(self.files.items())[:_FILES_NAMED]]
        if len(self.files) > _FILES_NAMED:
            lines.append(f"  ... of {len(self.files):,} files")
        if self.shards is not None:
            lines.append(f"shards: at least {self.shards_linked:,} of the {self.shards:,} that are there would stay")
        for what, size, free in (
            ("token cache", self.cache_bytes, self.cache_free),
            ("output", self.output_bytes, self.output_free),
        ):
            there = "" if free is None else f" ({free / 1e9:.2f} GB are free)"
            lines.append(f"{what}: about {size / 1e9:.2f} GB would be written{there}")
        return lines


def dry_run(job: Pipeline) -> DryRun:
    """Finds out what `job.run()` would do.

    Reads the inputs, the token cache and the manifest of the existing output, and tokenises the first records to
    estimate sizes.
    """
    token_cache = job.cache_of_run()
    path = job.earlier_output()
    earlier = EarlierOutput(path)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        splits = [split for place in enumerate(job.inputs) for split in split_file(place, job.options.block_bytes)]
        blocks = [
            block for found in pool.map(lambda split: list(_blocks(split, job, token_cache)), splits) for block in found
        ]
    to_do = {token_cache.digest(block.origin): block for block in blocks if block.receipt is None}
    kept = _shards_that_stay(job, token_cache, blocks, earlier)
    cached, written = sizes(job.config, job.tokenizer, job.inputs, job.options.max_reject_chars)
    size = sum(block.origin.bytes for block in blocks)
    output_bytes = int(written * size) - earlier.bytes_of(kept)
    return DryRun(
        output=job.output,
        state=_state(job, blocks, path, earlier.manifest),
        changed=[] if earlier.manifest is None else _changes(earlier.manifest, job.facts),
        blocks=len(blocks),
        reused=len(blocks) - len(to_do),
        bytes_to_do=sum(block.origin.bytes for block in to_do.values()),
        reasons=dict(Counter(block.why for block in to_do.values())),
        files=dict(Counter(block.origin.source.path for block in to_do.values())),
        shards=len(earlier) if len(earlier) else None,
        shards_linked=len(kept),
        cache_bytes=int(cached * sum(block.origin.bytes for block in to_do.values())),
        output_bytes=max(0, output_bytes),
        cache_free=free_bytes(token_cache.folder) if is_local(token_cache.folder) else None,
        output_free=free_bytes(os.path.dirname(job.output)) if is_local(job.output) else None,
    )


def _blocks(split: Split, job: Pipeline, token_cache: TokenCache) -> Iterator[Block]:
    for _, origin in blocks_of(split, job.options.block_bytes, job.options.max_line_bytes):
        yield _block(origin, token_cache)


def _block(origin: Origin, token_cache: TokenCache) -> Block:
    digest = token_cache.digest(origin)
    name = token_cache.name(digest)
    try:
        receipt = token_cache.find(digest)
    except TokenCacheError:
        return Block(origin, None, DAMAGED)
    if receipt is None:
        return Block(origin, None, OTHER_FACTS if token_cache.has_other(digest) else NEW)
    if not token_cache.trust.holds(receipt.counts("made")):
        return Block(origin, None, UNTRUSTED)
    return Block(origin, placed(receipt, origin, name, True))


def _shards_that_stay(job: Pipeline, token_cache: TokenCache, blocks: list[Block], earlier: EarlierOutput) -> list[str]:
    """The keys of the shards before the first block to tokenise that the earlier output has."""
    known = list(itertools.takewhile(lambda block: block.receipt is not None, blocks))
    if not known or not len(earlier) or earlier.manifest is None:
        return []
    complete = len(known) == len(blocks)
    last, of_known = known[-1].origin, [block.receipt for block in known if block.receipt is not None]
    if not complete:  # so that the plan sees the last file end here
        ends = last.start + last.size
        of_known = [each.updated(path_size=ends) if each["file"] == last.file else each for each in of_known]
    receipts = Receipts([pack_receipts(of_known)])
    row_indexes, config = RowIndexes(token_cache.row_indexes, receipts), job.config
    seen = first_items(receipts, row_indexes, config.preprocessing.max_items)
    borders = shard_borders(seen, row_indexes, config.output.max_tokens_per_shard)
    if not complete and seen is receipts:  # the shard where the known blocks end gets more rows
        if not borders:
            return []
        seen = first_items(receipts, row_indexes, int(receipts.rows[: borders[-1].block].sum()) + borders[-1].rows)
    layout = recipe.layout(config, job.tokenizer)
    keys = ShardKeys(token_cache, tuple(earlier.manifest["formats"]), layout, layout.columns(receipts.columns))
    cut = bool(receipts.counts("counter").get(CUT)) or CUT in earlier.manifest["counters"]
    shards = Shards(seen, borders)
    found = (keys.of(dataclasses.replace(shard, cut=cut)) for shard in shards)
    return [key for key in found if key in earlier]


def _state(job: Pipeline, blocks: list[Block], earlier: str | None, manifest: Mapping[str, Any] | None) -> str:
    if earlier is not None and manifest is not None:
        nodes: dict[int, list[Any]] = {}
        for block in blocks:
            nodes.setdefault(block.origin.file, []).extend(block.origin.nodes)
        inputs = [
            {"path": file.path, "size": file.size, "digest": tree_digest(nodes[number])}
            for number, file in enumerate(job.inputs)
        ]
        complete = output_at(earlier, job.staging).is_complete(manifest)
        if same_facts(manifest, job.facts) and manifest["inputs"] == inputs and complete:
            return "up to date"
    if job.options.keep_versions is not None:
        return "version" if Versions(job.root).problem() is None else "refused"
    if manifest is None:
        return "new" if output_at(job.output, job.staging).is_empty() else "refused"
    return "replaced" if job.options.overwrite else "refused"


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
    return [] if old == new else [f"{place}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
