"""A sample: drawn records, and the result of each step of a run on them."""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from beam_prep.chat.chat_format import template_of
from beam_prep.chat.template import ChatTemplate
from beam_prep.config import PipelineConfig
from beam_prep.data.block import InputFile, count_outcomes
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.receipts import ROLE_COUNTS
from beam_prep.data.rendered import Rendered
from beam_prep.data.schema import Output
from beam_prep.reading.records import Record, Records
from beam_prep.recipe import files_of_groups, layout, mask_steps, row_steps
from beam_prep.sample.draw import Drawn
from beam_prep.shards.pack import longest_row
from beam_prep.shards.plan import LedgerTotals, Plan, dropped_in
from beam_prep.shards.report import MAX_NO_LOSS_RATE, MAX_REJECT_RATE, ConfigView, Findings, failure, lines
from beam_prep.storage.foreign import advice_on
from beam_prep.tokens.batch import CUT_TOKENS, Batch
from beam_prep.tokens.mask import trained_tokens
from beam_prep.tokens.token_roles import followed, with_roles, without_roles
from beam_prep.tokens.tokenizer import Tokenizer
from beam_prep.transforms.steps import BlockStep, BuildMask, Labels, Shift, SplitPrompt

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
        masked: as ids with masks, before truncation.
        rows: as a run caches them, with the roles of their tokens, see `tokens.token_roles`.
    """

    number: int
    records: Records
    read: Records
    rendered: Rendered | None
    masked: Batch
    rows: Batch


@dataclass(frozen=True, slots=True)
class Conversation:
    """A list of messages of a record.

    Attributes:
        part, line: the record.
        field: the field that holds it.
        messages: its messages.
        actions: the actions of the sections that read it.
    """

    part: Part
    line: int
    field: str
    messages: Sequence[Mapping[str, Any]]
    actions: frozenset[str]


@dataclass(frozen=True)
class Sample:
    """Records of the input, and what a run makes of them. Checks do not change it.

    Attributes:
        config: the config. If a run would end at the first long sequence (`truncation_mode: "error"`), rows are cut
            here instead.
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
            cut: cut long rows even if a run would end at the first of them (`truncation_mode: "error"`).

        Raises:
            BeamPrepError: the tokenizer lacks something that the config needs.
            RunError: a row is too long, and `truncation_mode` is `error`; not with `cut`.
        """
        cutting = config
        if cut and config.preprocessing.truncation_mode == "error":
            step = config.preprocessing.model_copy(update={"truncation_mode": "keep_start"})
            cutting = config.model_copy(update={"preprocessing": step})
        steps = functools.cache(functools.partial(_steps, cutting, tokenizer))
        packing, eos_id = layout(cutting, tokenizer), tokenizer.id_of("eos_token")
        parts = []
        for number, records in enumerate(drawn.blocks):
            before, after = steps(records.origin.source.group)
            read, rendered, masked = _masked(records, before)
            rows = packing.cached(
                _with_roles(masked, after), eos_id, config.preprocessing.rows_without_loss, config.columns()
            )
            parts.append(Part(number, records, read, rendered, without_roles(masked), rows))
        return cls(config, tokenizer, files, drawn, tuple(parts))

    @property
    def count(self) -> int:
        """Number of records of the sample."""
        return self.drawn.count

    @functools.cached_property
    def outputs(self) -> dict[str, Output]:
        """The outputs of each record, by the names of their columns before labels are made."""
        return {output.name: output for part in self.parts[:1] for output in part.masked.outputs}

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
        return template_of(self.tokenizer, self.config.input.chat_template, self.config.input.date)

    @functools.cached_property
    def template_source(self) -> str:
        """The text of the chat template; "" without one."""
        if self.template is None:
            return ""
        return self.tokenizer.template_source(self.config.input.chat_template) or ""

    # Tokens.

    @functools.cached_property
    def tokens(self) -> int:
        """Tokens of all rows before truncation, plus an estimate for records that became no row."""
        encoded = sum(int(sizes.sum()) for sizes in self._sizes)
        return encoded + round(
            sum(
                self.tokens_of(part, line)
                for part in self.parts
                for line in np.flatnonzero(part.masked.ledger.status > 0).tolist()
                if part.masked.ledger.outcomes[part.masked.ledger.status[line] - 1][0] != "blank"
            )
        )

    @functools.cached_property
    def _tokens_per_byte(self) -> float:
        tokens = size = 0
        for part in self.parts:
            ledger, lines = part.masked.ledger, part.masked.line
            tokens += int(self._sizes[part.number].sum())
            size += int((ledger.ends[lines] - ledger.starts[lines]).sum())
        return tokens / size if tokens else 0.25

    @functools.cached_property
    def tokens_per_character(self) -> float:
        """Tokens per character of the sample's texts."""
        tokens = characters = 0
        for part in self.parts:
            if part.rendered is not None:
                tokens += int(self._sizes[part.number].sum())
                characters += sum(len(text) for pieces in part.rendered.pieces.values() for text in pieces.texts)
        return tokens / characters if tokens and characters else 0.25

    @functools.cached_property
    def _sizes(self) -> list[Array]:
        """int64 [rows] of each part: tokens of its rows before truncation."""
        return [_tokens(part.masked) for part in self.parts]

    def rows_of(self, part: Part, line: int) -> slice:
        """The rows of `part.masked` that come from a line; an empty slice if there are none."""
        first, last = np.searchsorted(part.masked.line, [line, line + 1]).tolist()
        return slice(first, last)

    def tokens_of(self, part: Part, line: int) -> float:
        """Tokens of a record; an estimate if it became no row."""
        sizes = self._sizes[part.number][self.rows_of(part, line)]
        if len(sizes):
            return float(sizes.sum())
        ledger = part.records.ledger
        return float(ledger.ends[line] - ledger.starts[line]) * self._tokens_per_byte

    @functools.cached_property
    def roles(self) -> dict[str, dict[str, int]]:
        """role -> {"messages": n, "tokens": n, "trained": n}, of kept rows, as in the manifest."""
        found: dict[str, Counter[str]] = {}
        for part in self.parts:
            counts = part.rows.roles.count(part.rows.line, len(part.rows.ledger.status))
            for role, said in counts.sums().items():
                found.setdefault(role, Counter()).update(dict(zip(ROLE_COUNTS, said, strict=True)))
        return {role: dict(counts) for role, counts in found.items()}

    @functools.cached_property
    def kept(self) -> tuple[int, int, int]:
        """(rows, tokens, trained tokens) that a run would write, before packing."""
        rows = sum(len(part.rows) for part in self.parts)
        written = layout(self.config, self.tokenizer)
        tokens = sum(int(written.tokens(part.rows).sum()) for part in self.parts)
        trained = sum(int(each.sum()) for part in self.parts for each in trained_tokens(part.rows).values())
        for part in self.parts:
            masked = {column.of for column in part.rows.schema.values() if column.role in ("mask", "labels")}
            for column, output in self.outputs.items():
                if output.trains and column in part.rows.columns and column not in masked:
                    trained += int(part.rows[column].flat_lengths.sum())  # all tokens are trained, so there is no mask
        return rows, tokens, trained

    def trained_before_cutting(self, part: Part, line: int) -> bool:
        """True if something of a record is trained, before truncation."""
        rows = self.rows_of(part, line)
        return any((per_row[rows] > 0).any() for per_row in trained_tokens(part.masked).values())

    # Records.

    def example(self, part: Part, line: int, text: str = "") -> Example:
        """A record as an example, with the given text or its beginning."""
        ledger = part.records.ledger
        shown = text or ledger.text(line, TEXT_LIMIT + 1)
        shown = shown if len(shown) <= TEXT_LIMIT else f"{shown[:TEXT_LIMIT]} ..."
        return Example(part.records.origin.source.path, part.records.offset(line), shown)

    def left_out(self) -> Iterator[tuple[str, str, Part, int]]:
        """(dropped or rejected, reason, part, line) of every record that becomes no row."""
        for part in self.parts:
            ledger = part.rows.ledger
            for line in np.flatnonzero(ledger.status).tolist():
                kind, reason = ledger.outcomes[ledger.status[line] - 1]
                if kind != "blank":
                    yield kind, reason, part, line

    def outcomes(self) -> dict[str, dict[str, int]]:
        """Numbers of dropped and rejected records, by reason."""
        found = {"dropped": Counter[str](), "rejected": Counter[str]()}
        for part in self.parts:
            counts = count_outcomes(part.rows.ledger.status, part.rows.ledger.outcomes)
            for kind, reasons in found.items():
                reasons.update(counts[kind])
        return {kind: dict(sorted(reasons.items())) for kind, reasons in found.items()}

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan of a run on only these records. It has no shards."""
        found = self.outcomes()
        of_files = np.zeros((len(self.files), 2), np.int64)
        lines = blank = 0
        for part in self.parts:
            ledger = part.rows.ledger
            empty = count_outcomes(ledger.status, ledger.outcomes)["blank"]
            lines, blank = lines + len(ledger.status), blank + empty
            of_files[part.rows.origin.file] += (len(ledger.status) - empty, len(part.rows))
        kept = sum(len(part.rows) for part in self.parts)
        return Plan(
            shards=(),
            rejects=(),
            ledger=LedgerTotals(lines, blank, kept, found["dropped"], found["rejected"]),
            counters=self.counters,
            inputs=[{"path": file.path} for file in self.files],
            columns=(),
            domains={},
            shards_of={},
            blocks=len(self.parts),
            reused=0,
            made={},
            roles=self.roles,
            drops=tuple(drop for part in self.parts for drop in dropped_in(part.rows, TEXT_LIMIT)),
            first_rejects=tuple(self._rejects()),
            of_files=of_files,
        )

    def _rejects(self) -> Iterator[dict[str, Any]]:
        for kind, reason, part, line in self.left_out():
            if kind == "rejected":
                place = {"file": part.rows.origin.source.path, "offset": part.rows.offset(line)}
                yield {**place, "reason": reason, "message": part.rows.ledger.messages[line]}

    @functools.cached_property
    def counters(self) -> dict[str, int]:
        """Counters of kept rows, as in the manifest."""
        found = Counter[str]()
        for part in self.parts:
            found.update({name: int(per_row.sum()) for name, per_row in part.rows.counters.items()})
        return dict(found)

    @functools.cached_property
    def findings(self) -> Findings:
        """The findings that the report of a run on these records would show."""
        _, tokens, trained = self.kept
        cut, not_text = self.counters.get(CUT_TOKENS, 0), self.outcomes()["rejected"].get("not_text", 0)
        return Findings(self.roles, tokens, trained, cut, counters=self.counters, not_text=not_text)

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
                yield f"{kind}: {', '.join(f'{count:,} {reason}' for reason, count in reasons.items())}"
        yield from lines(self.findings, self.view)
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
        actions: dict[str, set[str]] = {}
        for spec in self.config.outputs() if not self.config.input.tokenized else ():
            for section in spec.sections:
                if section.template:
                    actions.setdefault(section.field, set()).add(section.action)
        return [
            Conversation(part, line, name, record[name], frozenset(given))
            for part in self.parts
            if actions
            for line, record in zip(part.read.line.tolist(), part.read.rows, strict=True)
            for name, given in actions.items()
            if isinstance(record.get(name), list) and all(isinstance(item, dict) for item in record[name])
        ]

    # Rows.

    def sequences(self) -> Iterator[tuple[Part, str, Ragged, Array | None, Array]]:
        """(part, output, ids, mask, line of each sequence) for each part and output of ids, before truncation.

        ids: one row for each sequence; a record with a list has several. mask: uint8, as long as `ids.flat`, or None.
        """
        for part in self.parts:
            batch = part.masked
            masks = {column.of: batch[name] for name, column in batch.schema.items() if column.role == "mask"}
            for name, column in batch.schema.items():
                if column.role != "ids":
                    continue
                rows, lines = batch[name], batch.line
                if isinstance(rows.values, Ragged):
                    lines = np.repeat(lines, np.diff(rows.offsets))
                    rows = rows.values
                yield part, name, rows, None if name not in masks else masks[name].flat, lines

    @property
    def longest(self) -> int | None:
        """Most tokens of a row before it is cut; None: no row is cut."""
        return longest_row(dict(self.config.preprocessing))


def prepare(records: Records, config: PipelineConfig, tokenizer: Tokenizer) -> Batch:
    """The rows of a block that a run caches: everything of a config but packing, padding and position ids.

    Raises:
        BeamPrepError: see `Sample.of`.
    """
    (part,) = Sample.of(_all_of([records], []), config, tokenizer, [], cut=False).parts
    return without_roles(part.rows)


def _steps(
    config: PipelineConfig, tokenizer: Tokenizer, group: int | None
) -> tuple[Sequence[BlockStep], Sequence[BlockStep]]:
    """(steps up to masks, steps after them) for records of a group of inputs.

    Without the check by sample: these blocks are so small that it would render every record three times.
    """
    own = config if config.input.groups is None else config.part(group)
    return mask_steps(own, tokenizer), row_steps(own, tokenizer)


def _masked(records: Records, steps: Sequence[BlockStep]) -> tuple[Records, Rendered | None, Batch]:
    """(the records as sections read them, as texts, as ids with masks and roles)."""
    block: Any = records
    read, rendered = records, None
    for step in steps:
        before, block = block, step.step()(block)
        if isinstance(step, BuildMask):
            block = with_roles(before, block)
        if isinstance(block, Records):
            read = block
        elif isinstance(block, Rendered):
            rendered = block
    return read, rendered, block


def _with_roles(masked: Batch, steps: Sequence[BlockStep]) -> Batch:
    """The rows after the steps that follow the mask, with roles."""
    block = masked
    for step in steps:
        if isinstance(step, (Labels, Shift, SplitPrompt)):
            block = followed(block, step.step()(without_roles(block)))
        else:
            block = step.step()(block)
    return block


def sample_of(
    blocks: Sequence[Records], config: PipelineConfig, tokenizer: Tokenizer, files: Sequence[InputFile]
) -> Sample:
    """The sample of given records. For arguments and errors see `Sample.of`."""
    return Sample.of(_all_of(blocks, files), config, tokenizer, files)


def _all_of(blocks: Sequence[Records], files: Sequence[InputFile]) -> Drawn:
    count = sum(map(len, blocks))
    return Drawn(tuple(blocks), count, count, False, len(files), ())


def with_roles_of_others(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of all groups of inputs, each with the roles of the others, because they share one mask."""
    roles = [frozenset(sample.roles) for sample in samples]
    return [
        replace(sample, other_roles=frozenset().union(*roles[:place], *roles[place + 1 :]))
        for place, sample in enumerate(samples)
    ]


def _tokens(batch: Batch) -> Array:
    """int64 [rows]: tokens of all outputs of ids of a row."""
    found = np.zeros(len(batch), np.int64)
    for name, column in batch.schema.items():
        if column.role == "ids":
            found += batch[name].flat_lengths
    return found


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message; the texts of its parts joined."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
