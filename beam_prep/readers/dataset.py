"""`bp.open(OUTPUT)`: the rows of an output, for a trainer. It imports numpy, not Beam or transformers.

    ds = bp.open("out")
    ds[0]["sequence"]              # int32 [length]
    ds.decode(0)                   # its text
    ds.domain("math")[:100]        # a view; reads nothing
    torch.utils.data.DataLoader(ds, batch_size=8, collate_fn=...)

Readers trust only the manifest: they ignore files that it does not list.
"""

import zlib
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from beam_prep.data.block import drawn
from beam_prep.data.metadata import metadata_values
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.schema import IGNORE_INDEX, Column, Strategy
from beam_prep.errors import BeamPrepError, FormatError, TokenizerError
from beam_prep.formats import Row
from beam_prep.formats.manifest import MANIFEST
from beam_prep.hints import did_you_mean
from beam_prep.readers.output import OpenOutput
from beam_prep.readers.rows import Rows
from beam_prep.readers.views import Mixture, Packed, Ranks, Tail, checked, mixture
from beam_prep.storage.stored import StoredFiles

if TYPE_CHECKING:
    from beam_prep.tokens.tokenizer import Tokenizer


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
    stays open (memory-mapped) until the process needs its maps for other shards; iteration keeps one shard open.

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
    """

    def __init__(self, output: OpenOutput, rows: range) -> None:
        """Only `open_dataset` and views call this."""
        self._output = output
        self._rows = rows

    def __repr__(self) -> str:
        splits = self.splits
        split = f", split={splits[0]!r}" if len(splits) == 1 else ""
        return f"Dataset({str(self.path)!r}{split}, rows={len(self)}, columns={list(self.columns)})"

    @property
    def path(self) -> Any:
        """The output directory as an absolute `Path`; the URL of an output in a store."""
        return self._output.path

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the entire output."""
        return self._output.manifest

    @property
    def schema(self) -> tuple[Column, ...]:
        """The columns, in order."""
        return self._output.schema

    @property
    def format(self) -> str:
        """The format that is read, if the output is written in several."""
        return self._output._format.name

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains that have rows here, in the order of the rows."""
        here = (name for (_, name), rows in self._output.rows_of.items() if _within(self._rows, rows))
        return tuple(dict.fromkeys(here))

    def domain(self, name: str) -> "Dataset":
        """A view of the rows of one domain.

        Raises:
            BeamPrepError: there is no such domain, or its rows are in several splits.
        """
        found = {split: rows for (split, domain), rows in self._output.rows_of.items() if domain == name}
        if not found:
            raise no_domain(self.path, name, list(dict.fromkeys(domain for _, domain in self._output.rows_of)))
        here = {split: mine for split, rows in found.items() if (mine := _within(self._rows, rows))}
        if len(here) > 1:
            raise BeamPrepError(
                f"the rows of domain {name!r} are in the splits {_quoted(list(map(str, here)))}; give one of them: "
                f".split({next(iter(here))!r}).domain({name!r})"
            )
        return Dataset(self._output, next(iter(here.values()), range(0)))

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits that have rows here, in the order of the rows; () without splits."""
        found = (name for (name, _), rows in self._output.rows_of.items() if _within(self._rows, rows))
        return tuple(dict.fromkeys(name for name in found if name is not None))

    def split(self, name: str) -> "Dataset":
        """A view of the rows of one split.

        Raises:
            BeamPrepError: there is no such split.
        """
        check_split(self.path, self.manifest, name)
        parts = [rows for (split, _), rows in self._output.rows_of.items() if split == name]
        rows = range(parts[0].start, parts[-1].stop) if parts else range(0)
        return Dataset(self._output, _within(self._rows, rows))

    def domain_of(self, index: int) -> str:
        """The domain of a row.

        Raises:
            IndexError: there is no such row.
        """
        return self._output.part(self._output.shard_of(self._row_number(index)))[1]

    def split_of(self, index: int) -> str | None:
        """The split of a row; None without splits.

        Raises:
            IndexError: there is no such row.
        """
        return self._output.part(self._output.shard_of(self._row_number(index)))[0]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> "Dataset": ...
    @overload
    def __getitem__(self, index: Sequence[int] | Array) -> dict[str, Any]: ...
    def __getitem__(self, index: SupportsIndex | slice | Sequence[int] | Array) -> "Row | Dataset | dict[str, Any]":
        """A row (a negative index counts from the end), a view of a slice, or the columns of a list of rows.

        Raises:
            IndexError: there is no such row.
            FormatError: a row's shard is missing or damaged; the message names the file.
        """
        if type(index) is int:  # the usual case: the other checks take longer than reading a short row
            return self._output.row(self._row_number(index))
        if isinstance(index, slice):
            return Dataset(self._output, self._rows[index])
        if isinstance(index, Sequence) or (isinstance(index, np.ndarray) and index.ndim):
            found: dict[str, Any] = self._output.gather(self._row_numbers(index))
            for column in self.schema:
                if column.metadata:
                    found[column.name] = metadata_values(column, found[column.name])
            return found
        return self._output.row(self._row_number(index))

    def __getitems__(self, indices: Sequence[int] | Array) -> list[Row]:
        """Several rows. torch's `DataLoader` calls it for each batch.

        Raises:
            IndexError, FormatError: see `[]`.
        """
        return self._output.rows([*map(self._row_number, indices)])

    def __iter__(self) -> Iterator[Row]:
        first = stop = -1
        opened = None
        for number in self._rows:
            if opened is None or not first <= number < stop:
                opened = None  # closed before the next shard: a cache may need its room
                shard = self._output.shard_of(number)
                first, stop = self._output.starts[shard], self._output.starts[shard + 1]
                opened = self._output.opened(shard, keep=False)
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
        return Packed(self, length, seed, strategy, Ranks(rank, world_size, epoch, tail))

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
        said = [[shard["rows"], shard["files"]] for shard in self._output.listed]
        return zlib.crc32(repr([self._rows, said]).encode())

    def gather(self, indices: Array, cuts: tuple[Array, Array] | None = None) -> dict[str, Ragged]:
        """`[]` for checked indices; with `cuts`, only the values [start, stop) of each row."""
        return self._output.gather(self._rows.start + self._rows.step * indices, cuts)

    def lengths(self, column: str) -> Array:
        """int64 [rows]: the length of each row of a column.

        Raises:
            FormatError: a shard is missing or damaged.
        """
        found = np.zeros(len(self), np.int64)
        for shard in range(len(self._output.listed)):
            mine = self._in_shard(shard)
            if len(mine):
                start = self._output.starts[shard]
                place = self._rows.index(mine[0])
                lengths = self._output.opened(shard, keep=False).lengths(column)
                found[place : place + len(mine)] = lengths[np.arange(mine.start - start, mine.stop - start, mine.step)]
        return found

    def sizes(self, most: int) -> tuple[Array, Array]:
        """The sizes of rows, without reading the rows. Only for views without a step.

        Args:
            most: most shards to read. If there are more, it reads the first and draws others, always the same.

        Returns:
            int64 [rows] each: the numbers of the rows, ascending, and their sizes, see `Format.sizes_in`.

        Raises:
            FormatError: a shard is missing or damaged.
        """
        shards = np.array([place for place in range(len(self._output.listed)) if self._in_shard(place)], np.int64)
        if len(shards) > most:
            shards = shards[drawn(len(shards), most, first=True)]
        none = np.zeros(0, np.int64)
        numbers, sizes = zip((none, none), *map(self._sizes_in, shards.tolist()), strict=True)
        return np.concatenate(numbers), np.concatenate(sizes)

    def sizes_by_shard(self) -> Iterator[tuple[Array, Array]]:
        """Like `sizes`, for every shard in turn. Only one shard is in memory."""
        for shard in range(len(self._output.listed)):
            if self._in_shard(shard):
                yield self._sizes_in(shard)

    def _sizes_in(self, shard: int) -> tuple[Array, Array]:
        start, mine = self._output.starts[shard], self._in_shard(shard)
        found = self._output.opened(shard, keep=False).reader.sizes()
        return np.arange(mine.start, mine.stop) - self._rows.start, found[mine.start - start : mine.stop - start]

    def rejects(self) -> Iterator[dict[str, Any]]:
        """The rejected records of the entire output, in order: `file`, `offset` (in bytes; in a table rows), `line`
        (from 1), `reason`, `message`, and `text`, the beginning of the line. Files are read during iteration.

        >>> ds = bp.open("out/chat")
        >>> [reject["reason"] for reject in ds.rejects()]
        []

        Raises:
            FormatError: a file of rejects is missing or damaged.
        """
        return self._output.rejects()

    def drops(self) -> list[dict[str, Any]]:
        """The first dropped records of each reason, in order: `file`, `offset` (in bytes), `line` (from 1), `reason`,
        and `text`, the beginning of the line. `contaminated` records have `note`, the shared text. `duplicate` records
        have `same_as`: `file`, `offset` and `line` of the earlier, equal record. [] for an output of an early version.

        >>> bp.open("out/chat").drops()
        []

        Raises:
            FormatError: `run.json` is damaged.
        """
        found: list[dict[str, Any]] = self.run.get("report", {}).get("dropped", [])
        return found

    def marked(self) -> list[dict[str, Any]]:
        """The first records that were kept and marked (`preprocessing.decontaminate`), in order. See `drops`.

        >>> bp.open("out/chat").marked()
        []

        Raises:
            FormatError: `run.json` is damaged.
        """
        found: list[dict[str, Any]] = self.run.get("report", {}).get("marked", [])
        return found

    @property
    def run(self) -> dict[str, Any]:
        """The content of `run.json`: how and when the output was made; {} without this file."""
        return self._output.run()

    def _in_shard(self, shard: int) -> range:
        """The rows of this view in a shard."""
        return _within(self._rows, range(self._output.starts[shard], self._output.starts[shard + 1]))

    def _row_numbers(self, indices: Sequence[int] | Array) -> Array:
        return self._rows.start + self._rows.step * checked(indices, len(self))

    def _row_number(self, index: SupportsIndex) -> int:
        try:
            return self._rows[index]
        except IndexError:
            raise IndexError(f"row {index} of {len(self)}") from None

    @property
    def tokenizer(self) -> "Tokenizer | None":
        """The tokenizer that made the output, loaded at first use; None if the output keeps none.

        Raises:
            FormatError: the kept files are missing, or belong to another tokenizer.
        """
        return self._output.tokenizer

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
        from beam_prep.verify import LocalFiles, OutputFiles, problems  # it takes longer than opening an output

        if isinstance(self.path, str):
            files: OutputFiles = StoredFiles(self.path)
        else:
            files = LocalFiles(self.path)
        found = list(problems(files, self.manifest))
        if found:
            raise FormatError("\n".join([f"{self.path} is not what its {MANIFEST} says:", *found]))


def no_domain(path: Any, name: str, known: Sequence[str]) -> BeamPrepError:
    """The error for a domain that an output does not have."""
    return BeamPrepError(f"{path} has no domain {name!r}; {did_you_mean(name, known)}it has {_quoted(known)}")


def check_split(path: Any, manifest: Mapping[str, Any], name: str) -> None:
    """Checks that an output has a split.

    Raises:
        BeamPrepError: the output does not have the split.
    """
    known = list(manifest.get("splits", ()))
    if not known:
        raise BeamPrepError(
            f"{path} has no splits, wanted {name!r}: leave out the split, or add output.splits to the "
            "config and make the output again"
        )
    if name not in known:
        raise BeamPrepError(f"{path} has no split {name!r}; {did_you_mean(name, known)}it has {_quoted(known)}")


def _quoted(names: Collection[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(map(repr, list(names)[:10])) + more


def _within(rows: range, part: range) -> range:
    """The rows in both `rows` and `part` (with step 1), in the order of `rows`."""
    if rows.step < 0:
        return _within(rows[::-1], part)[::-1]
    return rows[bisect_left(rows, part.start) : bisect_left(rows, part.stop)]


def _trained_ids(ids: list[int]) -> list[int]:
    return [token for token in ids if token != IGNORE_INDEX]
