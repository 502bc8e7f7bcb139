"""`bp.open(OUTPUT)`: the rows of an output, for a trainer. It imports numpy, not Beam or transformers.

    ds = bp.open("out")
    ds[0]["sequence"]              # int32 [length]
    ds.decode(0)                   # its text
    ds.domain("math")[:100]        # a view; reads nothing
    torch.utils.data.DataLoader(ds, batch_size=8, collate_fn=...)

Readers trust only the manifest: they ignore files that it does not list.
"""

import functools
import hashlib
import itertools
import json
import os
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from beam_prep.data.block import drawn
from beam_prep.data.ragged import Array, Ragged, offsets_of
from beam_prep.data.schema import IGNORE_INDEX, Column, metadata_values
from beam_prep.errors import BeamPrepError, ConfigError, FormatError, TokenizerError
from beam_prep.formats import FORMATS, Row, joined
from beam_prep.formats.manifest import MANIFEST, RUN, TOKENIZER, folder_of_shard, load, output_columns
from beam_prep.hints import unknown_name
from beam_prep.readers.shards import (
    CACHE_BYTES,
    OpenShard,
    ReaderLease,
    Stored,
    StoredFiles,
    default_folder,
    is_version,
    latest_name,
    no_output,
)
from beam_prep.readers.views import WHOLE, Mixture, Rows, Tail, View, check, checked, mixture, shuffled, why_not_packed
from beam_prep.shards.pack import POSITION_IDS, SEQ_LENS, STRATEGIES, Strategy, plan_packs
from beam_prep.storage.stores import StoreOptions, read_bytes
from beam_prep.verify import OutputFiles, problems

if TYPE_CHECKING:
    from beam_prep.tokens.tokenizer import Tokenizer

Part = tuple[str | None, str]
"""(split or None, domain)."""


MAPS = 30_000
"""Most maps of open shards of an output. A column can be one, and Linux allows a process 65,530."""


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _part(shard: Mapping[str, Any]) -> Part:
    return shard.get("split"), shard["domain"]


class Dataset(Rows):
    """The rows of an output, or of a part of an output: a sequence (map-style dataset) that is read lazily.

    Row order: splits and domains in the manifest's order, shards in order, rows in order. `ds[i]` is a dict of column
    name -> array [length] in the column's dtype, or a `Ragged` if the column is a list of lists. `ds[[1, 5, 7]]` is a
    dict of column name -> `Ragged` of these rows, in this order: one array a column, copied once. All arrays are copies
    and belong to the caller.

    A metadata column (`output.keep_fields`, `output.provenance`) is a `str`, an `int` or a `float`; in packed rows it
    is a list of `str`, or an array. In `ds[[1, 5, 7]]` it is a list of `str`, or an array, with a value for each row;
    in packed rows a list of these.

    `ds[a:b]`, `ds.domain(name)` and `ds.split(name)` are views: they read nothing and share the open shards. A shard
    stays open (memory-mapped) until thousands of others are; iteration keeps one shard open.

    >>> ds = bp.open("out/chat")
    >>> row = ds[0]
    >>> row["input_ids"].shape, int((row["labels"] != -100).sum())
    ((87,), 36)
    >>> ds.decode(0, "labels")
    'Nine minutes from the moment ...<|im_end|>'
    >>> len(ds[:100]), ds.domains
    (100, ('__default__',))
    >>> batch = ds[[5, 0, 5]]
    >>> batch["input_ids"].lengths.tolist()
    [264, 87, 264]

    A dataset pickles as its path and manifest, so a data loader's processes open the files themselves.

    Attributes:
        path: the output directory as an absolute `Path`; the URL of an output in a store.
        manifest: the manifest of the entire output.
        schema: the columns, in order.
    """

    def __init__(
        self,
        files: Path | Stored,
        manifest: dict[str, Any],
        digest: bytes,
        lease: ReaderLease | None = None,
        domains: Sequence[str] | None = None,
        split: str | None = None,
    ) -> None:
        """Only `open_dataset` calls this. `digest`: of the manifest's file. `split`, `domains`: only their rows."""
        self.path: Any = files.url if isinstance(files, Stored) else files
        self.manifest = manifest
        self.schema = output_columns(manifest)
        if split is not None:
            self._check("split", split, manifest.get("splits", {}))
        here = [shard for shard in manifest["shards"] if split in (None, shard.get("split"))]
        for name in domains or ():
            self._check("domain", name, dict.fromkeys(shard["domain"] for shard in here))
        self._files, self._lease, self._domains, self._split = files, lease, domains, split
        self._digest = digest
        self._seen = set[tuple[int, int, int]]()  # inode, time and size of the manifest's file
        self._shards = [shard for shard in here if domains is None or shard["domain"] in domains]
        self._starts = [0, *itertools.accumulate(shard["rows"] for shard in self._shards)]
        self._rows_of: dict[Part, range] = {}
        self._folders: dict[Part, tuple[str, int]] = {}
        stop = 0
        for part, shards in itertools.groupby(self._shards, _part):  # there are many shards, but few parts
            first, stop = stop, stop + sum(1 for _ in shards)
            self._rows_of[part] = range(self._starts[first], self._starts[stop])
            self._folders[part] = folder_of_shard(manifest, part[1], part[0]), stop - first
        known = [name for name in manifest["formats"] if name in FORMATS]
        if not known:
            raise FormatError(
                f"{self.path} is in {', '.join(manifest['formats'])}, which this version cannot read: "
                "pip install --upgrade beam-prep"
            )
        self._format = FORMATS[known[0]]
        self._open = OrderedDict[int, OpenShard]()
        self._rows = range(self._starts[-1])
        self._tokenizer = functools.cache(functools.partial(_tokenizer_of, files, manifest))

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the shards itself.
        given = (self._files, self.manifest, self._digest, self._lease, self._domains, self._split)
        return Dataset, given, {"_rows": self._rows}

    def _view(self, rows: range) -> "Dataset":
        """A view of rows of the output. It shares everything else."""
        made = Dataset.__new__(Dataset)
        made.__dict__.update(self.__dict__, _rows=rows)
        return made

    def __repr__(self) -> str:
        splits = self.splits
        split = f", split={splits[0]!r}" if len(splits) == 1 else ""
        return f"Dataset({str(self.path)!r}{split}, rows={len(self)}, columns={list(self.columns)})"

    @property
    def format(self) -> str:
        """The format that is read, if the output is written in several."""
        return self._format.name

    def _here(self) -> dict[Part, range]:
        """The parts that have rows here, with these rows, in the order of the rows."""
        parts = self._rows_of.items() if self._rows.step > 0 else reversed(self._rows_of.items())
        found = {part: _within(self._rows, rows) for part, rows in parts}
        return {part: rows for part, rows in found.items() if rows}

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains that have rows here, in the order of the rows."""
        return tuple(dict.fromkeys(domain for _, domain in self._here()))

    def domain(self, name: str) -> "Dataset":
        """A view of the rows of one domain.

        Raises:
            BeamPrepError: there is no such domain, or its rows are in several splits.
        """
        self._check("domain", name, dict.fromkeys(domain for _, domain in self._rows_of))
        here = {split: rows for (split, domain), rows in self._here().items() if domain == name}
        if len(here) > 1:
            raise BeamPrepError(
                f"the rows of domain {name!r} are in the splits {', '.join(map(repr, here))}; give one of them: "
                f".split({next(iter(here))!r}).domain({name!r})"
            )
        return self._view(next(iter(here.values()), range(0)))

    def _check(self, what: str, name: str, known: Collection[str]) -> None:
        if name not in known:
            raise BeamPrepError(f"{self.path}: {unknown_name(what, name, known)}")

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits that have rows here, in the order of the rows; () without splits."""
        return tuple(dict.fromkeys(split for split, _ in self._here() if split is not None))

    def split(self, name: str) -> "Dataset":
        """A view of the rows of one split.

        Raises:
            BeamPrepError: there is no such split.
        """
        self._check("split", name, self.manifest.get("splits", {}))
        parts = [rows for (split, _), rows in self._rows_of.items() if split == name]
        rows = range(parts[0].start, parts[-1].stop) if parts else range(0)
        return self._view(_within(self._rows, rows))

    def domain_of(self, index: int) -> str:
        """The domain of a row.

        Raises:
            IndexError: there is no such row.
        """
        return _part(self._shards[self._shard_of(self._row_number(index))])[1]

    def split_of(self, index: int) -> str | None:
        """The split of a row; None without splits.

        Raises:
            IndexError: there is no such row.
        """
        return _part(self._shards[self._shard_of(self._row_number(index))])[0]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> "Dataset": ...
    @overload
    def __getitem__(self, index: Sequence[int] | Array) -> dict[str, Any]: ...
    def __getitem__(self, index: Any) -> "Row | Dataset | dict[str, Any]":
        """A row (a negative index counts from the end), a view of a slice, or the columns of a list of rows.

        Raises:
            IndexError: there is no such row.
            FormatError: a row's shard is missing or damaged; the message names the file.
        """
        if type(index) is int:  # the usual case: the other checks take longer than reading a short row
            return self._row(self._row_number(index))
        if isinstance(index, slice):
            return self._view(self._rows[index])
        if np.ndim(index):
            found: dict[str, Any] = self.gather(checked(index, len(self)))
            for column in self.schema:
                if column.metadata:
                    found[column.name] = metadata_values(column, found[column.name])
            return found
        return self._row(self._row_number(index))

    def __getitems__(self, indices: Sequence[int] | Array) -> list[Row]:
        """Several rows. torch's `DataLoader` calls it for each batch.

        Raises:
            IndexError, FormatError: see `[]`.
        """
        return [self._row(self._rows[index]) for index in checked(indices, len(self)).tolist()]

    def __iter__(self) -> Iterator[Row]:
        first = stop = -1
        opened = None
        for number in self._rows:
            if opened is None or not first <= number < stop:
                opened = None  # closed before the next shard: a cache may need its room
                shard = self._shard_of(number)
                first, stop = self._starts[shard], self._starts[shard + 1]
                opened = self._read(shard)
            yield opened.row(number)

    def packed(
        self,
        length: int,
        seed: int | None = 0,
        strategy: Strategy = "bfd",
        rank: int = 0,
        world_size: int = 1,
        epoch: int = 0,
        tail: "Tail" = "keep",
    ) -> "Packed":
        """A view of packed rows. No file is written, so length and seed can be changed at any time.

        Rows have `position_ids`, which begin at 0 with each document, and `seq_lens`, the lengths of the documents.
        This call plans the packs from the lengths of the rows. `seed` gives the order in which documents are packed;
        seed and epoch give the order of the packed rows. Every epoch has the same packed rows. All ranks together see
        each packed row once an epoch.

        >>> ds = bp.open("out/chat")
        >>> packed = ds.packed(512, seed=1, rank=0, world_size=2)
        >>> len(packed), packed.samples, round(packed.fill_rate, 2)
        (43, 86, 0.99)
        >>> state = packed.state_dict(taken=10)  # this rank has taken 10 rows, and so has the other one
        >>> packed = ds.packed(512, seed=1, rank=0, world_size=5)
        >>> packed.load_state_dict(state)
        >>> len(packed)  # of the 66 that are left
        14

        Args:
            length: most tokens of a packed row.
            seed: the seed of both orders; None: documents and packed rows keep their order.
            strategy: see `plan_packs`: `bfd` (documents longer than `length` are cut), `bfd_split` and `wrapped` (they
                are split), `simple` (a document a row).
            rank, world_size: this view has the rows of this rank.
            epoch: the number of the epoch, from 0.
            tail: what happens to the last rows of an epoch that cannot be shared equally: `keep` (some ranks have one
                row more), or `drop` (no rank has them).

        Raises:
            ConfigError: rows of these columns cannot be packed, or an argument is wrong.
        """
        return Packed(self, length, seed, strategy, rank, world_size, epoch, tail)

    def mixture(
        self,
        weights: Mapping[str, float],
        seed: int = 0,
        samples: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        epoch: int = 0,
        tail: "Tail" = "keep",
    ) -> "Mixture":
        """A view that mixes domains of this dataset by weights. `bp.mixture` also mixes outputs and packed views.

        >>> ds = bp.open("out/chat")
        >>> ds.mixture({"__default__": 1}, seed=1)  # one domain: its rows in a random order
        Mixture(samples=260 of 260, __default__: 1 epochs)
        """
        parts = {name: self.domain(name) for name in weights}
        return mixture(parts, weights, seed, samples, rank, world_size, epoch, tail)

    @property
    def key(self) -> int:
        """A checksum of the rows and their order. States of views hold it."""
        said = [[shard["rows"], shard["files"]] for shard in self._shards]
        return zlib.crc32(repr([self._rows, said]).encode())

    def lengths(self, column: str) -> Array:
        """int64 [rows]: the length of each row of a column.

        Raises:
            FormatError: a shard is missing or damaged.
        """
        found = np.zeros(len(self), np.int64)
        for shard in range(len(self._shards)):
            mine = self._in_shard(shard)
            if len(mine):
                start = self._starts[shard]
                place = self._rows.index(mine[0])
                lengths = self._read(shard).lengths(column)
                wanted = np.arange(mine.start - start, mine.stop - start, mine.step)
                found[place : place + len(mine)] = lengths[wanted]
        return found

    def sizes_by_shard(self, most: int | None = None) -> Iterator[tuple[Array, Array]]:
        """The sizes of rows, shard by shard, without reading the rows. Only for views without a step.

        Args:
            most: most shards to read. If there are more, it reads the first and draws others, always the same.

        Yields:
            int64 [rows] each: the numbers of the rows, ascending, and their sizes, see `Format.sizes_in`. Only one
            shard is in memory.

        Raises:
            FormatError: a shard is missing or damaged.
        """
        shards = np.array([place for place in range(len(self._shards)) if self._in_shard(place)], np.int64)
        if most is not None and len(shards) > most:
            shards = shards[drawn(len(shards), most, first=True)]
        for shard in shards.tolist():
            start, mine = self._starts[shard], self._in_shard(shard)
            found = self._read(shard).reader.sizes()
            yield np.arange(mine.start, mine.stop) - self._rows.start, found[mine.start - start : mine.stop - start]

    def rejects(self) -> Iterator[dict[str, Any]]:
        """The rejected records of the entire output, in order: `file`, `offset` (in bytes; in a table rows), `line`
        (from 1), `reason`, `message`, and `text`, the beginning of the line. Files are read during iteration.

        >>> ds = bp.open("out/chat")
        >>> [reject["reason"] for reject in ds.rejects()]
        []

        Raises:
            FormatError: a file of rejects is missing or damaged.
        """
        for file in self.manifest["rejects"]:
            folder, name = file["path"].rpartition("/")[::2]
            path = _local(self._files, [file], folder, self._open.clear) / name
            try:
                with path.open(encoding="utf-8", errors="surrogatepass", newline="\n") as lines:
                    yield from map(json.loads, lines)
            except (FileNotFoundError, ValueError) as error:
                raise FormatError(f"{path} is missing or damaged ({error}): make the output again") from None

    def drops(self) -> list[dict[str, Any]]:
        """The first dropped records of each reason, in order: `file`, `offset` (in bytes), `line` (from 1), `reason`,
        and `text`, the beginning of the line. `contaminated` records have `note`, the shared text. `duplicate` records
        have `same_as`: `file`, `offset` and `line` of the earlier, equal record. [] for an output of an early version.

        >>> bp.open("out/chat").drops()
        []

        Raises:
            FormatError: `run.json` is damaged.
        """
        return list(self.run.get("report", {}).get("dropped", []))

    def marked(self) -> list[dict[str, Any]]:
        """The first records that were kept and marked (`preprocessing.decontaminate`), in order. See `drops`.

        >>> bp.open("out/chat").marked()
        []

        Raises:
            FormatError: `run.json` is damaged.
        """
        return list(self.run.get("report", {}).get("marked", []))

    @property
    def run(self) -> dict[str, Any]:
        """The content of `run.json`: how and when the output was made; {} without this file."""
        try:
            found: dict[str, Any] = json.loads(read_bytes(f"{self.path}/{RUN}"))
            if not isinstance(found, dict):
                raise ValueError("it is no object")
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise FormatError(f"{self.path}/{RUN} is damaged ({error})") from None
        return found

    def _in_shard(self, shard: int) -> range:
        """The rows of this view in a shard."""
        return _within(self._rows, range(self._starts[shard], self._starts[shard + 1]))

    def _row_number(self, index: Any) -> int:
        if type(index) is not int:
            index = int(checked([index], len(self))[0])
        try:
            number: int = self._rows[index]
        except IndexError:
            raise IndexError(f"row {index} of {len(self)}") from None
        return number

    def _shard_of(self, number: int) -> int:
        return bisect_right(self._starts, number) - 1

    def _row(self, number: int) -> Row:
        """A copy of a row of the output."""
        shard = bisect_right(self._starts, number) - 1
        return (self._open.get(shard) or self._opened(shard)).row(number)

    def _opened(self, index: int) -> OpenShard:
        """A shard that stays open, until thousands of others are."""
        found = self._open.get(index) or self._open.setdefault(index, self._read(index))
        if len(self._open) > max(1, MAPS // len(self.schema)):
            with suppress(KeyError):  # another thread closed all
                self._open.popitem(last=False)
        return found

    def _read(self, index: int) -> OpenShard:
        """Opens a shard.

        Raises:
            FormatError: the shard is missing or damaged.
        """
        if self._lease is not None:
            self._lease.renew()
        shard, start = self._shards[index], self._starts[index]
        inside, shards = self._folders[_part(shard)]
        number, files = shard["shard"], shard["files"]
        if (named := self._format.files(self.schema, number, shards)) is not None:  # those of other formats stay away
            mine = {f"{inside}/{name}" for name in named}
            files = [file for file in files if file["path"] in mine]
        folder = _local(self._files, files, inside, self._open.clear)
        try:
            reader = self._format.read(folder, self.schema, number, shards)
        except FormatError:
            if folder.exists() or not isinstance(self._files, Stored):
                raise
            return self._read(index)  # another process removed it to make room in the cache
        finally:
            self._check_same()  # afterwards: what was opened before the output was replaced belongs to the manifest
        if len(reader) != shard["rows"]:
            raise FormatError(
                f"{folder}: shard {number} ({self.format}) holds {len(reader)} rows, {MANIFEST} says {shard['rows']}: "
                "make the output again"
            )
        return OpenShard(reader, start, self.schema)

    def _check_same(self) -> None:
        """Checks that the folder holds the output that was opened. (Copies from a store have their sha256.)

        Raises:
            FormatError: it holds another one, or none.
        """
        if isinstance(self._files, Stored):
            return
        path = self._files / MANIFEST
        try:
            found = path.stat()
            state = found.st_ino, found.st_mtime_ns, found.st_size
            is_same = state in self._seen or _sha256(path.read_bytes()) == self._digest
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror}: removed, or not on this machine?") from None
        if not is_same:
            raise FormatError(
                f"{self.path} was written again since it was opened: open it again. Readers keep their output if it "
                "has versions: --keep_versions"
            )
        self._seen.add(state)

    def gather(self, indices: Array, cuts: tuple[Array, Array] | None = None) -> dict[str, Ragged]:
        """Rows in this order: column name -> values, copied once, in native byte order.

        Args:
            indices: int64, checked.
            cuts: int64 [rows] each, start and stop of the wanted values of each row; None: all values. Metadata columns
                are not cut.
        """
        rows = self._rows.start + self._rows.step * indices
        views: list[list[Any]] = [[None] * len(rows) for _ in self.schema]
        order = np.argsort(rows)  # each shard is opened once
        first = stop = -1
        for place, number in zip(order.tolist(), rows[order].tolist(), strict=True):
            if not first <= number < stop:
                shard = self._shard_of(number)
                first, stop, opened = self._starts[shard], self._starts[shard + 1], self._opened(shard)
            for column, view in zip(views, opened.views(number), strict=True):
                column[place] = view
        if cuts is not None:
            borders = list(zip(cuts[0].tolist(), cuts[1].tolist(), strict=True))
            views = [
                found if column.metadata else [view[a:b] for view, (a, b) in zip(found, borders, strict=True)]
                for column, found in zip(self.schema, views, strict=True)
            ]
        return {
            column.name: joined(found, column.dtype, column.levels)
            for column, found in zip(self.schema, views, strict=True)
        }

    @property
    def tokenizer(self) -> "Tokenizer | None":
        """The tokenizer that made the output, loaded at first use; None if the output keeps none.

        Raises:
            FormatError: the kept files are missing, or belong to another tokenizer.
        """
        return self._tokenizer()

    def decode(self, index: int, column: str | None = None) -> str | list[str]:
        """The text of a row's ids, with special tokens.

        Args:
            index: the row; a negative index counts from the end.
            column: a column of ids, or of labels (only labels that are not -100); default: the first column of ids.

        Returns:
            The text; a list of texts if the column is a list of lists.

        Raises:
            BeamPrepError: there is no such column, or the column has no token ids.
            TokenizerError: the output keeps no tokenizer.
            IndexError, FormatError: see `[]`.
        """
        name = self._text_column(column)
        if self.tokenizer is None:
            raise TokenizerError(f"{self.path} keeps no tokenizer: decode the ids with the one that made them")
        ids = self[index][name]
        if isinstance(ids, Ragged):
            return [self.tokenizer.decode(_trained_ids(one)) for one in ids.to_lists()]
        return self.tokenizer.decode(_trained_ids(ids.tolist()))

    def _text_column(self, name: str | None) -> str:
        texts = [column.name for role in ("ids", "labels") for column in self.schema if column.role == role]
        if name is None and texts:
            return texts[0]
        if name is None or name not in texts:
            raise BeamPrepError(f"no column {name!r} of token ids in {self.path}; it has {', '.join(texts) or 'none'}")
        return name

    def verify(self) -> None:
        """Reads every file of the entire output and compares it with the manifest: see `verify.problems`.

        Raises:
            FormatError: the output differs from its manifest; the message has one line for each difference.
        """
        if found := self.problems():
            raise FormatError("\n".join([f"{self.path} is not what its {MANIFEST} says:", *found]))

    def problems(self) -> list[str]:
        """What `verify` finds: a line for each difference; [] if the output is as its manifest says."""
        files = StoredFiles(self.path) if isinstance(self.path, str) else OutputFiles(self.path)
        return list(problems(files, self.manifest))


def _local(
    files: Path | Stored, wanted: Sequence[Mapping[str, Any]], inside: str, close: Callable[[], None] = lambda: None
) -> Path:
    """A folder of the output on this machine, with these files of it. For `close` see `Stored.fetched`."""
    return files.fetched(wanted, inside, close) if isinstance(files, Stored) else files / inside


def _tokenizer_of(files: Path | Stored, manifest: Mapping[str, Any]) -> "Tokenizer | None":
    kept = [file for file in manifest["files"] if file["path"].startswith(f"{TOKENIZER}/")]
    if not kept:
        return None
    from beam_prep.tokens.tokenizer import Tokenizer

    folder = _local(files, kept, TOKENIZER)
    if not folder.is_dir():
        raise FormatError(f"{folder}: no such directory, though {MANIFEST} lists it")
    found = Tokenizer.load(folder)
    wanted = manifest.get("tokenizer", {}).get("fingerprint", found.fingerprint)
    if found.fingerprint != wanted:
        raise FormatError(f"{folder} is not the tokenizer that made the output: its fingerprint differs")
    return found


def _within(rows: range, part: range) -> range:
    """The rows in both `rows` and `part` (with step 1), in the order of `rows`."""
    if rows.step < 0:
        return _within(rows[::-1], part)[::-1]
    return rows[bisect_left(rows, part.start) : bisect_left(rows, part.stop)]


def _trained_ids(ids: list[int]) -> list[int]:
    return [token for token in ids if token != IGNORE_INDEX]


class Packed(View):
    """A view of packed rows, see `Dataset.packed`.

    Attributes:
        samples: packed rows of an epoch, over all ranks.
        fill_rate: tokens as a share of the capacity of the packed rows, 0 to 1.
    """

    def __init__(self, dataset: Dataset, length: int, seed: int | None, strategy: Strategy, *ranks: Any) -> None:
        self.schema = packed_columns(dataset)
        check("strategy", strategy, STRATEGIES)
        check("length", length, range(1, 2**31))
        check("seed", 0 if seed is None else seed, WHOLE)
        self._dataset, self._seed = dataset, seed
        lengths = dataset.lengths(str(self.schema[-1].of))
        narrow = np.int32 if len(lengths) < 2**31 else np.int64
        order = None if seed is None else shuffled(len(lengths), seed).astype(narrow)
        plan = plan_packs(lengths if order is None else lengths[order], strategy, length)
        row = plan.pieces.row.astype(narrow)
        self._row = row if order is None else order[row]
        self._start_of = plan.pieces.start.astype(np.int32)
        self._length_of = plan.pieces.lengths.astype(np.int32)
        self._packs = plan.packs
        self.fill_rate = float(self._length_of.sum(dtype=np.int64) / max(1, len(plan) * length))
        key = zlib.crc32(lengths.tobytes(), zlib.crc32(f"{length} {seed} {strategy}".encode()))
        super().__init__(len(plan), key, *ranks)

    def __repr__(self) -> str:
        return f"Packed({self._dataset!r}, samples={len(self)} of {self.samples}, fill_rate={self.fill_rate:.4f})"

    def _ordered(self, epoch: int) -> None:
        self._order = None if self._seed is None else shuffled(self.samples, self._seed, epoch)

    def _read(self, places: Array) -> list[Row]:
        packs = places if self._order is None else self._order[places]
        first, stop = self._packs[packs], self._packs[packs + 1]
        counts = stop - first
        pieces = np.arange(counts.sum()) + np.repeat(first - offsets_of(counts)[:-1], counts)
        lengths = self._length_of[pieces]
        starts = self._start_of[pieces]
        columns = self._dataset.gather(self._row[pieces].astype(np.int64), (starts, starts + lengths))
        tokens = offsets_of(lengths)
        begins = np.repeat(tokens[:-1], lengths)
        positions = (np.arange(tokens[-1]) - begins).astype(np.int32)
        documents = offsets_of(counts)
        beside = {c.name: metadata_values(c, columns.pop(c.name)) for c in self._dataset.schema if c.metadata}
        values = {name: rows.flat for name, rows in columns.items()} | {POSITION_IDS: positions}
        rows = []
        for pack in range(len(packs)):
            a, b = documents[pack], documents[pack + 1]
            row: Row = {name: flat[tokens[a] : tokens[b]] for name, flat in values.items()}
            of_documents = {name: found[a:b] for name, found in beside.items()}
            rows.append(row | of_documents | {SEQ_LENS: lengths[a:b]})
        return rows


def packed_columns(dataset: Dataset) -> tuple[Column, ...]:
    """The columns of the dataset, then `position_ids` and `seq_lens`. Metadata columns have a value a document.

    Raises:
        ConfigError: rows of these columns cannot be packed.
    """
    problem = why_not_packed(dataset.schema)
    made = [column.name for column in dataset.schema if column.role in ("position", "lengths")]
    if problem is None and made:
        problem = f"{made[0]!r} is what a packed view makes: make the output without packing and position ids"
    if problem is not None:
        raise ConfigError(f"{dataset.path}: {problem}")
    (ids,) = (column.name for column in dataset.schema if column.role == "ids")
    columns = (replace(column, depth=1) if column.metadata else column for column in dataset.schema)
    added = Column(POSITION_IDS, "int32", 1, "position", ids), Column(SEQ_LENS, "int32", 1, "lengths", ids)
    return (*columns, *added)


ALL = "all"
"""In place of the name of a split: the rows of all splits."""


def _held(root: str) -> tuple[str, ReaderLease | None]:
    """The output at a path, or the latest version below it; and a lease, if it is a version."""
    while True:
        name = latest_name(root)
        where = root if name is None else os.path.join(root, name)
        if name is None and not is_version(root):
            return where, None
        lease = ReaderLease(where)
        if latest_name(root) == name:  # else a run that did not see the lease may have removed the version
            return where, lease


def open_dataset(
    path: str | os.PathLike[str],
    domains: Sequence[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    *,
    split: str | None = None,
) -> Dataset:
    """Opens an output. It reads the manifest; a shard is opened when one of its rows is read.

    If the output has versions, the latest is opened. A version, the latest or another, is not removed while the reader
    holds it (by a lease, which lasts a day and is renewed when shards are opened).

    If the output is in a store (`gs://`, `s3://`), a shard is copied to this machine, and checked by its sha256, when
    one of its rows is first read. Processes share the copies. boto3 and google-cloud-storage find credentials and
    endpoints by themselves.

    >>> ds = bp.open("out/chat")
    >>> len(ds), ds.columns
    (260, ('input_ids', 'labels'))

    If the output has splits, give `split`. There is no default, so test data cannot get into training unnoticed. "all"
    gives the rows of all splits, one split after the other.

    Args:
        path: the output.
        domains: only the rows of these domains, in the order of the output; default: all.
        cache: the folder of the copies; default: `outputs` in this user's cache folder of beam_prep.
        cache_bytes: most bytes of copies. The least recently used copies are removed first.
        split: only the rows of this split; "all": all rows, also if there are no splits.

    Raises:
        FormatError: there is no output; the message says what is there instead.
        BeamPrepError: the output has no such domain or split, or it has splits and `split` is not given.
        StorageError: the store does not answer, or refuses.
    """
    if isinstance(domains, str):
        raise BeamPrepError(f"domains is {domains!r}, wanted a list: domains=[{domains!r}]")
    is_stored = "://" in os.fspath(path)
    root = os.fspath(path).rstrip("/") if is_stored else os.path.abspath(path)
    if os.path.islink(root):  # `latest` itself, for instance, which moves
        root = os.path.realpath(root)
    where, lease = _held(root)
    files: Path | Stored = Path(where)
    if is_stored:
        copies = default_folder() if cache is None else Path(os.path.abspath(cache))
        files = Stored(where, copies, cache_bytes, StoreOptions.current())
    try:
        content = read_bytes(f"{where}/{MANIFEST}")
        manifest, digest = load(content, f"{where}/{MANIFEST}"), _sha256(content)
    except (FileNotFoundError, NotADirectoryError):
        above = [] if is_stored else [each for each in Path(where).parents[:3] if (each / MANIFEST).is_file()]
        if above:
            raise FormatError(f"{path} is a part of an output: open {above[0]}") from None
        raise no_output(where if os.path.isdir(where) else root) from None
    try:
        if split is None and manifest.get("splits"):
            counts = ", ".join(f"{name!r} ({found['rows']:,} rows)" for name, found in manifest["splits"].items())
            first = next(iter(manifest["splits"]))
            raise BeamPrepError(
                f"{where} has the splits {counts}: say which, split={first!r}, or split={ALL!r} for all rows"
            )
        return Dataset(files, manifest, digest, lease, domains, None if split == ALL else split)
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{where}/{MANIFEST} is damaged ({error!r}): make the output again") from None
