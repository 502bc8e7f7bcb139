"""A sample: drawn records, and the result of each step of a run on them, without Beam.

For `inspect`, `audit`, `init`, `template`, and the start of a run. The same files always give the same records.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from beam_prep.chat.chat_format import template_of
from beam_prep.chat.environment import asks_for_date
from beam_prep.chat.messages import text_of_part
from beam_prep.chat.template import ChatTemplate
from beam_prep.config import PipelineConfig
from beam_prep.data.block import ALIVE, AnyPath, InputFile, Ledger, Split, drawn
from beam_prep.data.hashing import CHUNK
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.rendered import Rendered
from beam_prep.data.schema import Output
from beam_prep.formats.manifest import count_tokens
from beam_prep.hints import counted, listed, shortened
from beam_prep.reading.records import Record, Records
from beam_prep.recipe import files_of_groups, inputs_of, layout, mask_steps, read_config, row_steps, run_steps
from beam_prep.shards.compose import Compose
from beam_prep.shards.pack import longest_row
from beam_prep.shards.plan import Plan, make_plan
from beam_prep.shards.receipts import STATISTICS, BlockReceipt, Copies, Receipts, RowIndex, placed
from beam_prep.shards.report import MAX_NO_LOSS_RATE, MAX_REJECT_RATE, ConfigView, failure, lines
from beam_prep.storage.files import plain_size
from beam_prep.storage.inputs import advice_on, blocks_drawn, first_records, is_stream
from beam_prep.storage.shipped import load_tokenizer
from beam_prep.tokens.batch import Batch, with_roles
from beam_prep.tokens.tokenizer import Tokenizer
from beam_prep.transforms.steps import BlockStep, BuildMask

SAMPLE_BYTES = 1 << 25
"""Most bytes of records: to encode 32 MB takes about 20 seconds."""
_PLACES = 128  # places that are read, and most files: neighbouring records are alike, and each is a request to a store
_OF_A_PLACE = 4  # more places for more records than this from each
_PLACES_BYTES = 2  # at places, at most this many times the sample's bytes are read
_STREAM_BYTES = 8  # of all compressed files, at most this many times the sample's bytes are read


@dataclass(frozen=True, slots=True)
class Drawn:
    """Records of a sample.

    Attributes:
        blocks: the blocks that hold the records; their other lines are blank.
        count: number of drawn lines, without blank ones.
        about: number of lines of the input, about.
        all: True if these are all lines.
        files: number of files that were read.
        unread: files of which only the beginning was read, because they are large, and compressed or tables.
    """

    blocks: tuple[Records, ...]
    count: int
    about: int
    all: bool
    files: int
    unread: tuple[str, ...]

    @property
    def looked_at(self) -> str:
        """A text: `2,000 records looked at (of about 12,000), in 3 files`."""
        what = "all of it" if self.all else f"of about {float(f'{self.about:.1e}'):,.0f}"
        return f"{counted(self.count, 'record')} looked at ({what}), in {counted(self.files, 'file')}"


def draw(files: Sequence[InputFile], count: int, size: int = SAMPLE_BYTES) -> Drawn:
    """Draws `count` records of all files, in order; fewer if they exceed `size` bytes. Includes the first record.

    Plain files are read at random places; compressed files, tables, and lists in `.json` files from their beginning.

    Raises:
        InputError: a file cannot be read.
    """
    places = max(1, min(_PLACES_BYTES * size // CHUNK, max(_PLACES, count // _OF_A_PLACE)))
    chosen = drawn(len(files), min(_PLACES, places), first=True).tolist()
    contents = {index: plain_size([files[index]]) for index in chosen}
    total, streams = max(1, sum(contents.values())), sum(is_stream(files[index]) for index in chosen)
    found, unread = list[tuple[Records, float]](), list[str]()
    complete = len(chosen) == len(files)
    for index, content in contents.items():
        file, of_file = files[index], math.ceil(places * content / total)
        if is_stream(file):
            blocks, end, whole = blocks_drawn(file, index, CHUNK, of_file, max(CHUNK, _STREAM_BYTES * size // streams))
            read, content = sum(block.origin.bytes for block in blocks), end if whole else max(end, content)
            unread += [] if whole else [file.path]
        else:
            cells = drawn(-(-content // CHUNK), of_file, first=index == chosen[0]).tolist()
            splits = (Split(index, file, cell * CHUNK, min(cell * CHUNK + CHUNK, content)) for cell in cells)
            blocks = [block for split in splits if (block := first_records(split)) is not None]
            read = sum(min(CHUNK, content - cell * CHUNK) for cell in cells)
        complete = complete and not unread and read == content
        found += [(block, content / max(1, read)) for block in blocks]
    found.sort(key=lambda each: (each[0].origin.file, each[0].origin.start))
    held = sum(len(block.ledger.raw) for block, _ in found)
    weights = np.repeat([each for _, each in found], [len(filled(block.ledger)) for block, _ in found])
    lines = len(weights)
    if held > size:
        count = min(count, max(1, lines * size // held))
    about = lines if complete else round(weights.sum() * len(files) / max(1, len(chosen)))
    taken = tuple(_taken([block for block, _ in found], weights, count))
    return Drawn(taken, min(lines, count), about, complete and lines <= count, len(chosen), tuple(unread))


def _taken(blocks: Sequence[Records], stands_for: Array, count: int) -> Iterator[Records]:
    """The blocks, with only `count` of their lines, the first among them.

    Args:
        blocks: in order.
        stands_for: float64 [lines], how many lines of the input each of their lines stands for.
        count: how many lines are kept.
    """
    picked = np.ones(len(stands_for), bool)
    if count < len(picked):
        chance, others = np.random.default_rng(0), stands_for[1:]
        picked[1:] = False
        picked[1 + chance.choice(len(others), count - 1, replace=False, p=others / others.sum())] = True
    start = 0
    for block in blocks:
        there = filled(block.ledger)
        left_out = there[~picked[start : start + len(there)]]
        start += len(there)
        if not len(left_out):
            yield block
            continue
        ledger = block.ledger.copy()
        ledger.blank(left_out)
        for line in left_out.tolist():
            ledger.messages.pop(line, None)
        yield block.keep(np.flatnonzero(ledger.status[block.line] == ALIVE), ledger)


def filled(ledger: Ledger) -> Array:
    """int64: the lines of a block that are not blank."""
    blank = [code for code, (kind, _) in enumerate(ledger.outcomes, start=1) if kind == "blank"]
    return np.flatnonzero(~np.isin(ledger.status, blank))


TEXT_LIMIT = 160
"""Most characters of an example."""


@dataclass(frozen=True, slots=True)
class Example:
    """A record with a finding.

    Attributes:
        file, offset: the place of its line, in bytes of the (decompressed) file; in rows of a table.
        text: what was found in the record.
    """

    file: str
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """A block of the sample after each step.

    Attributes:
        number: its index in the sample.
        records: as they are in the file.
        read: after the adapter and the limits of characters.
        rendered: as texts; None: the records are tokenised already.
        tokenized: as ids with the places of messages; None: as for `rendered`.
        masked: as ids with masks, before truncation.
        rows: as a run caches them, with the roles of their tokens, see `tokens.batch.with_roles`.
    """

    number: int
    records: Records
    read: Records
    rendered: Rendered | None
    tokenized: Batch | None
    masked: Batch
    rows: Batch


@dataclass(frozen=True, slots=True)
class Conversation:
    """A list of messages of a record.

    Attributes:
        part, line: the record.
        field: the field that holds it.
        messages: its messages.
    """

    part: Part
    line: int
    field: str
    messages: Sequence[Mapping[str, Any]]


class Row(NamedTuple):
    """A sequence of ids, before truncation.

    Attributes:
        part, line: its record.
        output: the output that it belongs to.
        ids: the ids.
        mask: which are trained; None: the output has no mask.
    """

    part: Part
    line: int
    output: Output
    ids: Array
    mask: Array | None


@dataclass(frozen=True)
class Sample:
    """Records of the input, and what a run makes of them. Checks do not change it.

    Attributes:
        config: the config.
        tokenizer: the tokenizer.
        files: all files of the input.
        drawn: the records.
        parts: the results of the steps.
        other_roles: roles of messages in other groups of inputs.
    """

    config: PipelineConfig
    tokenizer: Tokenizer
    files: Sequence[InputFile]
    drawn: Drawn
    parts: Sequence[Part]
    other_roles: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, drawn: Drawn, config: PipelineConfig, tokenizer: Tokenizer, files: Sequence[InputFile], cut: bool = True
    ) -> "Sample":
        """Runs the steps of a config on drawn records.

        Args:
            drawn, config, tokenizer, files: see `Sample`.
            cut: go on where a run would end at a long row (`truncation_mode: "error"`), or would not begin, because the
                template asks for a date.

        Raises:
            BeamPrepError: the tokenizer lacks something that the config needs.
            RunError: a row is too long, and `truncation_mode` is `error`; not with `cut`.
        """
        running = config
        if cut:
            step, given = config.preprocessing, config.input
            if step.truncation_mode == "error":
                step = step.model_copy(update={"truncation_mode": "keep_start"})
            given = given.model_copy(update={"date": _date(config, tokenizer)})
            running = config.model_copy(update={"input": given, "preprocessing": step})

        @functools.cache
        def steps(group: int | None) -> tuple[Sequence[BlockStep], Sequence[BlockStep]]:
            # Without the check by sample: these blocks are so small that it would render every record three times.
            own = running.part(group)
            return mask_steps(own, tokenizer), row_steps(own, tokenizer)

        packing, eos_id = layout(running, tokenizer), tokenizer.id_of("eos_token")
        parts = []
        for number, records in enumerate(drawn.blocks):
            part = _part(number, records, *steps(records.origin.source.group))
            rows = packing.cached(part.rows, eos_id, config.preprocessing.rows_without_loss)
            parts.append(replace(part, rows=rows))
        return cls(config, tokenizer, files, drawn, tuple(parts))

    @property
    def count(self) -> int:
        """Number of records of the sample."""
        return self.drawn.count

    @functools.cached_property
    def view(self) -> ConfigView:
        """The part of the config that reports depend on."""
        groups = () if self.config.input.groups is None else files_of_groups(self.files)
        return ConfigView.of(self.config.canonical(), groups)

    @functools.cached_property
    def template(self) -> ChatTemplate | None:
        """The chat template; None if no section uses one."""
        if not any(spec.has_template for spec in self.config.outputs()):
            return None
        return template_of(self.tokenizer, self.config.input.chat_template, _date(self.config, self.tokenizer))

    @property
    def template_source(self) -> str:
        """The text of the chat template; "" without one."""
        return "" if self.template is None else self.template.source

    # Tokens.

    @functools.cached_property
    def _tokens_per_byte(self) -> float:
        tokens = size = 0
        for part in self.parts:
            ledger, lines = part.masked.ledger, np.unique(part.masked.line)
            tokens += int(part.masked.lengths.sum())
            size += int((ledger.ends[lines] - ledger.starts[lines]).sum())
        return tokens / size if tokens else 0.25

    def tokens_of(self, part: Part, line: int) -> float:
        """Tokens of a record, about."""
        ledger = part.masked.ledger
        return float(ledger.ends[line] - ledger.starts[line]) * self._tokens_per_byte

    def tokens_in(self, text: str) -> float:
        """Tokens of a text, about."""
        return len(text.encode("utf-8", "replace")) * self._tokens_per_byte

    @functools.cached_property
    def tokens(self) -> int:
        """Tokens of all rows before truncation, plus an estimate for records that became no row."""
        ledgers = [part.masked.ledger for part in self.parts]
        size = sum(float((each.ends - each.starts)[filled(each)].sum()) for each in ledgers)
        return round(size * self._tokens_per_byte)

    @functools.cached_property
    def kept(self) -> tuple[int, int, int]:
        """(rows, tokens, trained tokens) that a run would write, before packing."""
        tokens = trained = 0
        for part in self.parts:
            schema = [*part.rows.schema.values()]
            counts = count_tokens(schema, part.rows.columns)
            masked = {column.of for column in schema if column.role in ("mask", "labels")}
            whole = {output.name for output in part.masked.outputs if output.trains} - masked  # all of it is trained
            tokens += sum(counts["tokens"].values())
            trained += sum(counts["trained"].values()) + sum(counts["tokens"].get(name, 0) for name in whole)
        return sum(len(part.rows) for part in self.parts), tokens, trained

    # Records.

    def example(self, part: Part, line: int, text: str = "") -> Example:
        """A record as an example, with the given text or its beginning."""
        ledger = part.records.ledger
        shown = shortened(text or ledger.text(line, TEXT_LIMIT + 1), TEXT_LIMIT)
        return Example(part.records.origin.source.path, part.records.offset(line), shown)

    def left_out(self) -> Iterator[tuple[str, str, Part, int]]:
        """(dropped or rejected, reason, part, line) of every record that becomes no row."""
        for part in self.parts:
            ledger = part.rows.ledger
            for line in np.flatnonzero(ledger.status).tolist():
                kind, reason = ledger.outcomes[ledger.status[line] - 1]
                if kind != "blank":
                    yield kind, reason, part, line

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan of a run on only these records. It has no shards."""
        indexes, blocks = dict[str, RowIndex](), []
        for name, rows in ((str(part.number), part.rows) for part in self.parts):
            indexes[name] = RowIndex.of(rows, np.zeros(len(rows), np.int32), rows.lengths, TEXT_LIMIT)
            receipt = BlockReceipt.of(indexes[name].statistics([""], {}), ())
            blocks.append(placed(receipt, rows.origin, name, reused=False).values)
        receipts = Receipts(pa.Table.from_pylist(blocks, schema=STATISTICS), np.zeros((2, 0), np.int64))
        found = make_plan(
            receipts, lambda names: [indexes[name] for name in names], 1 << 62, None, Compose(), lambda _: Copies()
        )
        inputs = [{"path": file.path} for file in self.files]
        shown = tuple(each._replace(line=0) for each in found.shown)  # lines before a block are not known
        return replace(found, shards=(), rejects=(), inputs=inputs, shown=shown)

    @property
    def roles(self) -> dict[str, dict[str, int]]:
        """role -> {"messages": n, "tokens": n, "trained": n}, of kept rows, as in the manifest."""
        return self.plan.roles

    @property
    def found(self) -> dict[str, Any]:
        """What the report of a run on these records would show, see `report.Found`."""
        counts = {"roles": self.roles, "counters": self.plan.counters, "ledger": self.plan.ledger.as_dict()}
        return {**counts, "totals": {"tokens": {"": self.kept[1]}}}

    def outcomes(self) -> dict[str, dict[str, int]]:
        """Numbers of dropped and rejected records, by reason."""
        return {kind: self.found["ledger"][kind] for kind in ("dropped", "rejected")}

    @functools.cached_property
    def failure(self) -> str | None:
        """Why a run on these records would fail, with the format of an input that is no JSONL; None if it would not."""
        problem = failure(self.plan, self.view, MAX_REJECT_RATE, MAX_NO_LOSS_RATE)
        if problem is not None and (advice := advice_on(self.files, problem, self.view.fields)) is not None:
            problem += f"; {advice}"
        return problem

    def lines(self) -> Iterator[str]:
        """A summary for people: what was looked at, and what became of it."""
        rows, tokens, trained = self.kept
        yield self.drawn.looked_at
        share = f" ({trained / tokens:.1%} trained)" if tokens else ""
        yield f"{rows:,} kept, {tokens:,} tokens{share}"
        for kind, reasons in self.outcomes().items():
            if reasons:
                yield f"{kind}: {listed(reasons)}"
        yield from lines(self.found, self.view)
        if self.failure is not None:
            yield f"a run on these would fail: {self.failure}"

    def originals(self) -> Iterator[tuple[Part, int, Record]]:
        """(part, line, record as in its file)."""
        for part in self.parts:
            for line, record in zip(part.records.line.tolist(), part.records.rows, strict=True):
                yield part, line, record

    def texts(self) -> Iterator[tuple[Part, int, str]]:
        """(part, line, text) of every text that sections read: contents of messages, and fields."""
        for conversation in self.conversations:
            for message in conversation.messages:
                if text := text_of(message):
                    yield conversation.part, conversation.line, text
        yield from self.plain_texts()

    def plain_texts(self) -> Iterator[tuple[Part, int, str]]:
        """(part, line, text) of every text of a field, without messages."""
        plain = {s.field for spec in self.config.outputs() for s in spec.sections if not s.template}
        for part in self.parts if not self.config.input.tokenized else ():
            for line, record in zip(part.read.line.tolist(), part.read.rows, strict=True):
                for name in sorted(plain):
                    value = record.get(name)
                    for each in value if isinstance(value, list) else (value,):
                        if isinstance(each, str) and each:
                            yield part, line, each

    @functools.cached_property
    def conversations(self) -> list[Conversation]:
        """The lists of messages that sections read, each list once."""
        sections = [section for spec in self.config.outputs() for section in spec.sections]
        names = dict.fromkeys(section.field for section in sections if section.template)
        return [
            Conversation(part, line, name, record[name])
            for part in self.parts
            for line, record in zip(part.read.line.tolist(), part.read.rows, strict=True)
            for name in names
            if isinstance(record.get(name), list) and all(isinstance(item, dict) for item in record[name])
        ]

    # Rows.

    @functools.cached_property
    def rows(self) -> list[Row]:
        """Every sequence of ids, before truncation. A record with a list has several."""
        found = []
        for batch, part in ((part.masked, part) for part in self.parts):
            masks = {column.of: batch[name].flat for name, column in batch.schema.items() if column.role == "mask"}
            for output in batch.outputs:
                if batch.schema[output.name].role != "ids":
                    continue
                ids, mask, lines = batch[output.name], masks.get(output.name), batch.line
                flat, borders = ids.flat, ids.offsets
                if isinstance(ids.values, Ragged):
                    lines, borders = np.repeat(lines, ids.lengths), ids.values.offsets
                for line, (start, stop) in zip(lines.tolist(), itertools.pairwise(borders.tolist()), strict=True):
                    own = None if mask is None else mask[start:stop]
                    found.append(Row(part, line, output, flat[start:stop], own))
        return found

    @property
    def lengths(self) -> Array:
        """int64: tokens of every sequence, before truncation."""
        return np.array([len(row.ids) for row in self.rows], np.int64)

    @property
    def longest(self) -> int | None:
        """Most tokens of a row before it is cut; None: no row is cut."""
        return longest_row(dict(self.config.preprocessing))


def opened(
    inputs: Sequence[str] | str | None, config: PipelineConfig | AnyPath, tokenizer_path: Any
) -> tuple[PipelineConfig, list[InputFile], Tokenizer]:
    """The config, the files of the input and the tokenizer. Raises what a run with these arguments would raise."""
    config = read_config(config)
    return config, inputs_of(config, inputs), load_tokenizer(tokenizer_path)


def _part(number: int, records: Records, before: Sequence[BlockStep], after: Sequence[BlockStep]) -> Part:
    """A block after each step, up to the masks and behind them; its rows are not yet as a run caches them."""
    block: Any = records
    read, rendered, tokenized = records, None, None
    for step in before:
        given, block = block, step.step()(block)
        if isinstance(block, Records):
            read = block
        elif isinstance(block, Rendered):
            rendered = block
        elif isinstance(step, BuildMask):
            tokenized = given
    return Part(number, records, read, rendered, tokenized, block, with_roles(run_steps(after, block)))


def sample_of(
    blocks: Sequence[Records], config: PipelineConfig, tokenizer: Tokenizer, files: Sequence[InputFile]
) -> Sample:
    """The sample of given records. For arguments and errors see `Sample.of`."""
    count = sum(map(len, blocks))
    return Sample.of(Drawn(tuple(blocks), count, count, False, len(files), ()), config, tokenizer, files)


def with_roles_of_others(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of all groups of inputs, each with the roles of the others, because they share one mask."""
    roles = [frozenset(sample.roles) for sample in samples]
    return [
        replace(sample, other_roles=frozenset().union(*roles[:place], *roles[place + 1 :]))
        for place, sample in enumerate(samples)
    ]


def today() -> str:
    """The date of today."""
    return date.today().isoformat()


def _date(config: PipelineConfig, tokenizer: Tokenizer) -> str | None:
    """The date of a config; that of today if it has none, and its template asks for one."""
    if config.input.date is not None or not any(spec.has_template for spec in config.outputs()):
        return config.input.date
    return today() if _asks(tokenizer.template_source(config.input.chat_template) or "") else None


_asks = functools.lru_cache(maxsize=8)(asks_for_date)


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message; the texts of its parts joined."""
    content = message.get("content")
    return "".join(map(text_of_part, content if isinstance(content, list) else [content]))
