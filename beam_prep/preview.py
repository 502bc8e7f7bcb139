"""`beam-prep inspect FILE --config C --tokenizer_path T`: shows the rows of a run before the run. Writes nothing."""

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from beam_prep.config import PipelineConfig
from beam_prep.data.block import ALIVE, TEXT_LIMIT, InputFile
from beam_prep.data.metadata import metadata_value, placed
from beam_prep.data.ragged import Array, offsets_of
from beam_prep.inspect.left_out import LeftOut
from beam_prep.inspect.output import columns_line
from beam_prep.inspect.page import ROWS, check_page
from beam_prep.inspect.rows import ShownRow
from beam_prep.inspect.selection import Selection
from beam_prep.inspect.sequences import VISIBLE, RowDisplay, percent, role_key
from beam_prep.inspect.show import Entry, first_of_each, show
from beam_prep.reading.records import CONTAMINATED
from beam_prep.reading.sources import source_of
from beam_prep.recipe import inputs_of, layout, read_config, references_of
from beam_prep.sample import Part, Sample, draw, sample_of
from beam_prep.shards.report import warnings
from beam_prep.storage.splits import FIRST_BYTES, first_records
from beam_prep.storage.tokenizers import load_tokenizer
from beam_prep.tokens.token_roles import is_of_labels, is_role_column

_BYTES = 1 << 21
"""Most bytes of records that are read: more than the rows of a page, and a few seconds of work."""
_PROBLEMS = 10  # shown one by one

_DROPPED = {
    "empty": "there is nothing to encode",
    "too_short": "every text field is shorter than preprocessing.min_chars, which is {min_chars:,}",
    "too_long": "longer than max_chars, {max_chars:,} characters, or {limit}, {tokens:,} tokens",
    "rows_without_loss": "no token of it is trained (preprocessing.rows_without_loss: 'keep' keeps it)",
}


def preview(
    inputs: Sequence[str] | str | None,
    config: PipelineConfig | str | os.PathLike[str],
    tokenizer_path: str | os.PathLike[str],
    *,
    ids: bool = False,
    html: str | os.PathLike[str] | None = None,
    pager: bool = False,
    **chosen: Any,
) -> None:
    """Prints rows that a run would write, the outcome of other records, and the messages of the run.

    It uses a sample of the records, always the same one. By default it shows the first row, the shortest, the longest,
    and a few random ones.

    Args:
        inputs: paths and globs of JSONL files, as for a run; None: the config names them.
        config: a config, or the path of its JSON file.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub.
        ids: print each token's id in front of it.
        html: write a page for a browser to this file instead, with the roles of tokens. Unless records are chosen, it
            has 1,000 random rows (or all rows, if there are fewer), and the first records left out for each reason.
        pager: in a terminal, send the text to `$PAGER`, or to `less -R`.
        chosen: which records to show: the arguments of `Selection`. `count`: the first rows, with the outcome of the
            records between them.

    Raises:
        BeamPrepError: two arguments exclude each other; no record was left out for the given reason.
        ConfigError, InputError, TokenizerError, RunError: a run with these arguments would raise them.
    """
    selection = Selection(**chosen)
    if html is not None:
        check_page(html)
    name = "the config" if isinstance(config, PipelineConfig) else os.fspath(config)
    if not isinstance(config, PipelineConfig):
        config = read_config(config)
    files = inputs_of(config, inputs)
    tokenizer = load_tokenizer(tokenizer_path)
    config.check_vocabulary(tokenizer.max_id)
    sample = Sample.of(draw(files, ROWS, _BYTES), config, tokenizer, files, cut=False)
    show(SampleRows(sample, name, selection), selection, ids, html, pager)


class SampleRows:
    """The rows of a sample, not packed. See `RowSource`.

    Args:
        sample: the sample.
        name: the name of its config, for people.
        chosen: what to show of the sample.
    """

    unit = ""

    def __init__(self, sample: Sample, name: str = "", chosen: Selection | None = None) -> None:
        self.sample, self._name = sample, name
        self._first = chosen is not None and chosen.count is not None and not chosen.searches
        self._layout = layout(sample.config, sample.tokenizer)
        self._starts = offsets_of([len(part.rows) for part in sample.parts])
        self._notes: list[str] = []
        self.title = _files(sample.files)
        self.about = f"before a run, as {name} makes them: "

    def __len__(self) -> int:
        return int(self._starts[-1])

    def shown(self, number: int, why: str = "") -> list[ShownRow]:
        """See `RowSource.shown`."""
        place = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._rows(self.sample.parts[place], number - int(self._starts[place]), why)

    def first(self, count: int) -> Iterator[Entry]:
        """See `RowSource.first`. Includes the outcome of the records between rows, and the reasons of further ones."""
        sample, kept, left_out, more = self.sample, 0, 0, Counter[str]()
        for entry in itertools.chain.from_iterable(self._outcomes_of(*each) for each in enumerate(sample.files)):
            if kept == count:
                break
            if isinstance(entry, list):
                kept += 1
                yield from entry
            elif left_out < _PROBLEMS:
                left_out += 1
                yield entry
            else:
                more[f"{entry.reason} ({entry.kind})"] += 1
        if more:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in more.items())
            self._notes.append(f"{more.total():,} more records are left out: {counts}")
        if kept < count:
            all_was_read = all(file.size <= FIRST_BYTES and file.compression is None for file in sample.files)
            where = "all" if all_was_read else f"the first {FIRST_BYTES // 1024:,} KB of each file"
            self._notes.append(f"{kept:,} row{'s' * (kept != 1)} in {where}")

    def _outcomes_of(self, number: int, file: InputFile) -> Iterator[list[ShownRow] | LeftOut]:
        """The outcomes of the first records of a file."""
        records = first_records(file, number)
        if records is not None:
            sample = self.sample
            yield from SampleRows(sample_of([records], sample.config, sample.tokenizer, sample.files)).outcomes()

    def outcomes(self) -> Iterator[list[ShownRow] | LeftOut]:
        """The outcome of each record, in order: its row (or its chunks), or why it has none."""
        for part in self.sample.parts:
            ledger, rows = part.rows.ledger, {line: row for row, line in enumerate(part.rows.line.tolist())}
            for line, status in enumerate(ledger.status.tolist()):
                if status == ALIVE:
                    yield self._rows(part, rows[line])
                elif ledger.outcomes[status - 1][0] != "blank":
                    yield self._left_out(part, line)

    def sizes_by_shard(self) -> list[tuple[Array, Array]]:
        """See `RowSource.sizes_by_shard`."""
        sizes = [self._layout.tokens(part.rows) for part in self.sample.parts]
        return [(np.arange(len(self)), np.concatenate([np.zeros(0, np.int64), *sizes]))]

    def sizes(self) -> tuple[Array, Array, str]:
        """See `RowSource.sizes`."""
        return *self.sizes_by_shard()[0], ""

    def counts(self) -> dict[str, dict[str, int]]:
        """See `RowSource.counts`."""
        marked = sum(1 for _ in self.left_out("marked"))
        return {**self.sample.outcomes(), "marked": {CONTAMINATED: marked} if marked else {}}

    def left_out(self, kind: str) -> Iterator[LeftOut]:
        """See `RowSource.left_out`."""
        if kind == "marked":
            for part in self.sample.parts:
                for line in part.rows.line[np.isin(part.rows.line, list(part.rows.ledger.notes))].tolist():
                    yield self._left_out(part, line)
        for found, _, part, line in self.sample.left_out():
            if found == kind:
                yield self._left_out(part, line)

    def problems(self) -> Iterator[LeftOut]:
        """See `RowSource.problems`. One record for each reason."""
        return itertools.islice(first_of_each(self, 1), _PROBLEMS)

    def head(self) -> Text:
        """See `RowSource.head`."""
        config, step = self.sample.config, self.sample.config.preprocessing
        shifted = step.shift if config.output.columns == "labels" else None
        text = Text().append(self.title, "bold")
        text.append(
            f": {'the first rows' if self._first else 'rows'}, as {self._name} makes them; nothing is written\n"
        )
        text.append(f"{columns_line(config.written(), shifted)}\n")
        if step.packing_strategy != "none":
            size = step.max_packed_len or step.max_seq_len
            text.append(f"packing: {step.packing_strategy}, {size:,} tokens a row; here each document is shown alone\n")
        references = references_of(config)
        for warning in [*config.warnings, *([] if references is None else references.warnings)]:
            text.append(f"config: {warning}\n")
        return text

    def remarks(self, chosen: Selection) -> list[str]:
        """See `RowSource.remarks`."""
        return self._notes

    def report(self) -> Text:
        """See `RowSource.report`. The messages of a run on these records."""
        sample, text = self.sample, Text()
        for number, line in enumerate(sample.lines()):
            style = "bold" if number == 0 else "bold red" if line.startswith("a run on these would fail") else ""
            text.append(f"{line}\n".translate(VISIBLE), style)
        for warning in warnings(sample.findings, sample.view) if sample.failure is None else ():
            text.append(f"warning: {warning}\n".translate(VISIBLE), "yellow")
        return text[:-1]

    def numbers(self) -> list[tuple[str, str, int, str]]:
        """See `RowSource.numbers`."""
        rows, tokens, trained = self.sample.kept
        numbers = [("read", "records looked at", self.sample.plan.ledger.read, ""), ("rows", "rows", rows, "")]
        numbers.append(("tokens", "tokens", tokens, ""))
        if trained:
            numbers.append(("trained", "trained tokens", trained, percent(trained, tokens)))
        for kind, counts in self.sample.outcomes().items():
            numbers += [(f"{kind}.{reason}", f"{kind}: {reason}", count, "") for reason, count in counts.items()]
        return numbers

    def _rows(self, part: Part, row: int, why: str = "") -> list[ShownRow]:
        """A kept row; several if it is cut into chunks, or split into turns."""
        sample, batch, line = self.sample, part.rows, int(part.rows.line[row])
        unpacked = self._layout
        if unpacked.packing != "none":
            names = {column: name for column, name in unpacked.names.items() if column in batch.schema}
            unpacked = dataclasses.replace(unpacked, packing="none", position_ids="none", names=names)
        schema = unpacked.columns(tuple(batch.schema.values()))
        shown = tuple(column for column in schema if not is_role_column(column))
        display = RowDisplay(shown, sample.tokenizer, sample.config.canonical(), batch.origin.source.path)
        own = {name: column[row : row + 1] for name, column in batch.columns.items()}
        if unpacked.provenance:
            own = placed(own, batch.origin.file, batch.origin.first_byte)
        columns, _ = next(unpacked.rows([(own, None)], schema))
        count = len(next(iter(columns.values())))
        counters = [f"{name}: {counts[row]:,}" for name, counts in batch.counters.items() if counts[row]]
        found = []
        for number in range(count):
            chunk = (
                f"{'row' if unpacked.chunking is None else 'chunk'} {number + 1:,} of {count:,}" if count > 1 else ""
            )
            title = [_place(part, line), chunk, why, f"domain {batch.domain[row]}", batch.ledger.notes.get(line, "")]
            values: dict[str, Any] = {
                role_key(c.of or "", is_of_labels(c)) if is_role_column(c) else c.name: columns[c.name][number]
                for c in schema
            }
            values |= {c.name: metadata_value(c, values[c.name]) for c in schema if c.metadata}
            title = [words for words in title if words]
            found.append(ShownRow(display, values, title, batch.domain[row], counters, batch.roles.names))
        return found

    def _left_out(self, part: Part, line: int) -> LeftOut:
        """The reason why a line that is not blank became no row, or is marked."""
        ledger, status = part.rows.ledger, int(part.rows.ledger.status[line])
        kind, reason = ("marked", CONTAMINATED) if status == ALIVE else ledger.outcomes[status - 1]
        why = ledger.messages[line] if kind == "rejected" else ledger.notes.get(line, "")
        if kind == "dropped" and reason in _DROPPED:
            step, plan = self.sample.config.preprocessing, self._layout
            packed = plan.cuts and plan.capacity < step.max_seq_len
            limit, tokens = ("max_packed_len", plan.capacity) if packed else ("max_seq_len", step.max_seq_len)
            why = _DROPPED[reason].format(**step.model_dump(), limit=limit, tokens=tokens)
        return LeftOut(_place(part, line), kind, reason, why, ledger.text(line, TEXT_LIMIT))


def _place(part: Part, line: int) -> str:
    origin, offset = part.rows.origin, part.rows.offset(line)
    kind = source_of(origin.source.path)
    if kind.by_row:
        return f"{origin.source.path}, {kind.place(offset + 1)}"
    if origin.start:  # the lines before are not counted
        return f"{origin.source.path}, byte offset {offset:,}"
    return f"{origin.source.path}, {kind.place(line + 1)}"


def _files(files: Sequence[InputFile]) -> str:
    return files[0].path if len(files) == 1 else f"{len(files):,} files"
