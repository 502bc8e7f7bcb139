"""Rows before a run; nothing is written. `beam-prep inspect FILE --config C --tokenizer_path T` takes a sample of files
through the chain of a run, and `beam-prep template TOKENIZER` the conversations of `chat.conversations`."""

import dataclasses
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.text import Text

from beam_prep.chat.chat_format import template_of
from beam_prep.chat.conversations import CONVERSATIONS, Outcome, outcome_of
from beam_prep.config import PipelineConfig
from beam_prep.config.pipeline_config import with_template
from beam_prep.data.block import ALIVE, DROPPED, TEXT_LIMIT, AnyPath
from beam_prep.data.ragged import Array, offsets_of
from beam_prep.data.schema import metadata_value, placed
from beam_prep.hints import VISIBLE, shortened
from beam_prep.inspect.draw import Entry, Head, Number, RowText, check_page, draw
from beam_prep.inspect.output import ROWS, RowSource, Selection, columns_line, show
from beam_prep.inspect.row import LeftOut, RowKind, ShownRow, percent
from beam_prep.reading.records import CONTAMINATED
from beam_prep.reading.sources import source_of
from beam_prep.recipe import layout, references_of
from beam_prep.sample import Part, Sample, opened, sample_of, today
from beam_prep.sample import draw as draw_records
from beam_prep.shards.report import warnings
from beam_prep.storage.shipped import load_tokenizer
from beam_prep.testing import records
from beam_prep.tokens.tokenizer import Tokenizer

_BYTES = 1 << 21
"""Most bytes of records that are read: more than the rows of a page, and a few seconds of work."""
_PROBLEMS = 10  # shown one by one


def preview(
    inputs: Sequence[str] | str | None,
    config: PipelineConfig | AnyPath,
    tokenizer_path: AnyPath,
    *,
    ids: bool = False,
    html: AnyPath | None = None,
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
        pager: in a terminal, send the text to `$PAGER`, or to `less`.
        chosen: which records to show: the arguments of `Selection`.

    Raises:
        BeamPrepError: two arguments exclude each other; no record was left out for the given reason.
        ConfigError, InputError, TokenizerError, RunError: a run with these arguments would raise them.
    """
    selection = Selection(**chosen)
    if html is not None:
        check_page(html)
    name = "the config" if isinstance(config, PipelineConfig) else os.fspath(config)
    config, files, tokenizer = opened(inputs, config, tokenizer_path)
    sample = Sample.of(draw_records(files, ROWS, _BYTES), config, tokenizer, files, cut=False)
    show(SampleRows(sample, name), selection, ids, html, pager)


class SampleRows(RowSource):
    """The rows of a sample, not packed.

    Args:
        sample: the sample.
        name: the name of its config, for people.
    """

    problems = _PROBLEMS

    def __init__(self, sample: Sample, name: str = "") -> None:
        self.sample, self._name = sample, name
        self._layout = layout(sample.config, sample.tokenizer)
        self._starts = offsets_of([len(part.rows) for part in sample.parts])
        self.title = sample.files[0].path if len(sample.files) == 1 else f"{len(sample.files):,} files"
        self.about = f", before a run, as {name} makes them"

    def __len__(self) -> int:
        return int(self._starts[-1])

    def shown(self, number: int, why: str = "") -> list[ShownRow]:
        place = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self.rows(self.sample.parts[place], number - int(self._starts[place]), why)

    def sizes(self, most: int | None = None) -> list[tuple[Array, Array]]:
        sizes = [self._layout.tokens(part.rows) for part in self.sample.parts]
        return [(np.arange(len(self)), np.concatenate([np.zeros(0, np.int64), *sizes]))]

    def counts(self) -> dict[str, dict[str, int]]:
        marked = sum(1 for _ in self.left_out("marked"))
        return {**self.sample.outcomes(), "marked": {CONTAMINATED: marked} if marked else {}}

    def left_out(self, kind: str) -> Iterator[LeftOut]:
        if kind == "marked":
            for part in self.sample.parts:
                is_marked = np.isin(part.rows.line, list(part.rows.ledger.notes))
                for line in part.rows.line[is_marked].tolist():
                    yield self.reason(part, line)
        for found, _, part, line in self.sample.left_out():
            if found == kind:
                yield self.reason(part, line)

    def head(self) -> Text:
        config, step = self.sample.config, self.sample.config.preprocessing
        lines = [f": rows, as {self._name} makes them; nothing is written"]
        lines.append(columns_line(config.written(), step.shift if config.output.columns == "labels" else None))
        if step.packing_strategy != "none":
            size = step.max_packed_len or step.max_seq_len
            lines.append(f"packing: {step.packing_strategy}, {size:,} tokens a row; here each document is shown alone")
        references = references_of(config)
        for warning in [*config.warnings, *([] if references is None else references.warnings)]:
            lines.append(f"config: {warning}")
        return Text.assemble((self.title.translate(VISIBLE), "bold"), "\n".join(lines).translate(VISIBLE), "\n")

    def below(self) -> list[Text]:
        """The messages of a run on the records."""
        sample = self.sample
        said = warnings(sample.found, sample.view) if sample.failure is None else ()
        text = Text("\n".join([*sample.lines(), *(f"warning: {each}" for each in said)]).translate(VISIBLE))
        text.highlight_regex(r"(?m)^(a run on these would fail|warning): .*", "bold red")
        return [text]

    def numbers(self) -> list[Number]:
        rows, tokens, trained = self.sample.kept
        numbers = [("records looked at", self.sample.plan.ledger.read, ""), ("rows", rows, ""), ("tokens", tokens, "")]
        return [*numbers, ("trained tokens", trained, percent(trained, tokens))]

    def rows(self, part: Part, row: int, why: str = "") -> list[ShownRow]:
        """A kept row; several if it is cut into chunks, or split into turns."""
        sample, batch, line = self.sample, part.rows, int(part.rows.line[row])
        unpacked = self._layout
        if unpacked.packing != "none":
            names, dtype = (
                {column: each for column, each in given.items() if column in batch.schema}
                for given in (unpacked.names, unpacked.dtype)
            )
            unpacked = dataclasses.replace(unpacked, packing="none", position_ids="none", names=names, dtype=dtype)
        schema = unpacked.columns(tuple(batch.schema.values()))
        kind = RowKind(schema, sample.tokenizer, sample.config.canonical())
        own = {name: column[row : row + 1] for name, column in batch.columns.items()}
        if unpacked.provenance:
            own = placed(own, batch.origin.file, batch.origin.first_byte)
        columns, _ = next(unpacked.rows([own], schema))
        count = len(next(iter(columns.values())))
        counters = [f"{name}: {counts[row]:,}" for name, counts in batch.counters.items() if counts[row]]
        what = "row" if unpacked.chunking is None else "chunk"
        found = []
        for number in range(count):
            chunk = f"{what} {number + 1:,} of {count:,}" if count > 1 else ""
            words = [_place(part, line), chunk, why, f"domain {batch.domain[row]}", batch.ledger.notes.get(line, "")]
            title = [*filter(None, words)]
            values = {name: column[number] for name, column in columns.items()}
            values |= {c.name: metadata_value(c, values[c.name]) for c in schema if c.metadata}
            found.append(ShownRow(kind, values, title, batch.domain[row], counters, batch.roles.names))
        return found

    def reason(self, part: Part, line: int) -> LeftOut:
        """The reason why a line that is not blank became no row, or is marked."""
        ledger, status = part.rows.ledger, int(part.rows.ledger.status[line])
        kind, reason = ("marked", CONTAMINATED) if status == ALIVE else ledger.outcomes[status - 1]
        why = ledger.messages.get(line) or ledger.notes.get(line) or DROPPED.get(reason, "")
        return LeftOut(_place(part, line), kind, reason, why, shortened(ledger.text(line), TEXT_LIMIT - 1))


def _place(part: Part, line: int) -> str:
    origin, offset = part.rows.origin, part.rows.offset(line)
    kind = source_of(origin.source.path)
    if kind.by_row:
        return f"{origin.source.path}, {kind.place(offset + 1)}"
    if origin.start:  # the lines before are not counted
        return f"{origin.source.path}, byte offset {offset:,}"
    return f"{origin.source.path}, {kind.place(line + 1)}"


_RESULT = 50  # most characters of a message in the summary: its lines have 100
_KINDS = {"taken": "bold green", "not written": "bold yellow", "refused": "bold red", "raises": "bold red"}


class Case(NamedTuple):
    """What a template does with a conversation.

    Attributes:
        name: of the conversation.
        outcome: its outcome.
        entry: its row, or why it has none.
    """

    name: str
    outcome: Outcome
    entry: Entry


def template(
    tokenizer_path: AnyPath,
    chat_template: str | None = None,
    *,
    html: AnyPath | None = None,
    as_json: bool = False,
    pager: bool = False,
) -> None:
    """Prints for each conversation whether a chat template takes it, what it leaves out, and what is trained.

    Args:
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub.
        chat_template: the path of a template, or the name of one of the tokenizer's templates; None: the tokenizer's
            own template, or all its named ones.
        html: write a page for a browser to this file instead.
        as_json: print one line of JSON instead.
        pager: in a terminal, send the text to `$PAGER`, or to `less`.

    Raises:
        TokenizerError: the tokenizer or the template cannot be used, or there is no such template.
        ConfigError: the template's file cannot be read.
        BeamPrepError: the page cannot be written.
    """
    if html is not None:
        check_page(html)
    tokenizer, path = load_tokenizer(tokenizer_path), os.fspath(tokenizer_path)
    cases = {name: cases_of(source, tokenizer, name) for name, source in _sources(tokenizer, chat_template).items()}
    if as_json:
        found = [{"name": name, "conversations": [*map(_as_json, each)]} for name, each in cases.items()]
        print(json.dumps({"tokenizer": path, "templates": found}, ensure_ascii=False))
        return
    every = [case for each in cases.values() for case in each]
    words, numbers = "what its chat template does with each conversation", _counts(every)
    head = Head(path, words, [(kind, count, "") for kind, count in numbers.items()], _summary(path, cases))
    draw(head, (case.entry for case in every), RowText(), html, pager)


def _summary(path: str, templates: Mapping[str, Sequence[Case]]) -> Text:
    """For each template a heading, and a line for each conversation."""
    text = Text()
    for name, cases in templates.items():
        counts = ", ".join(f"{count} {kind}" for kind, count in _counts(cases).items())
        text.append(f"{path}{f', template {name!r}' if name else ''}: {counts}\n", "bold")
        for case in cases:
            kind = case.outcome.kind
            text.append(f"  {case.name:{_NAME}}  ").append(f"{kind:11}", _KINDS[kind]).append(f"  {_result(case)}\n")
    return text


_NAME = max(map(len, CONVERSATIONS))


def _counts(cases: Sequence[Case]) -> dict[str, int]:
    """Number of conversations of each kind."""
    counts = Counter(case.outcome.kind for case in cases)
    return {kind: counts[kind] for kind in _KINDS}


def _result(case: Case) -> str:
    """What comes of a conversation, in the rest of a line."""
    outcome, entry = case.outcome, case.entry
    if isinstance(entry, LeftOut):
        message = " ".join(outcome.message.removeprefix("the chat template raised: ").split())
        return shortened(message, _RESULT).translate(VISIBLE)
    (sequence,) = entry.sequences
    lost = f"; without {', '.join(outcome.lost_kinds)}" if outcome.lost else ""
    return f"{sequence.trained.sum()} of {sequence.stored} trained{lost}"


def _sources(tokenizer: Tokenizer, given: str | None) -> Mapping[str, str | None]:
    """Name ("" for the tokenizer's only template) -> template, as a value of `input.chat_template`."""
    named = tokenizer.chat_templates
    if given is not None:
        return {os.path.basename(given): named.get(given, given)}
    return named or {"": None}


def cases_of(source: str | None, tokenizer: Tokenizer, name: str = "") -> list[Case]:
    """Takes the conversations through the chain of a run.

    Args:
        source: the template, as a value of `input.chat_template`; None: the tokenizer's own.
        tokenizer: the tokenizer.
        name: the first word of titles.

    >>> cases = cases_of(None, bp.Tokenizer.load("examples/tokenizer"))
    >>> cases[0].name, cases[0].outcome.kind
    ('question and answer', 'taken')
    """
    # The settings of a usual run, but records that it would leave out are kept, because there is something to see.
    section = {"field": "messages", "action": "$role", "template": "conversation"}
    given = {"sections": [section], "not_rendered": "keep", "date": today(), "chat_template": source}
    steps = {"max_seq_len": 1 << 20, "rows_without_loss": "keep"}
    settings = {"input": given, "mask": {"assistant": "train"}, "preprocessing": steps}
    config = PipelineConfig.from_dict(with_template(settings, ""))
    chat = template_of(tokenizer, config.input.chat_template, config.input.date)
    blocks = [records([record]) for record in CONVERSATIONS.values()]
    found = SampleRows(sample_of(blocks, config, tokenizer, []))
    cases = []
    for (case, record), part in zip(CONVERSATIONS.items(), found.sample.parts, strict=True):
        outcome, title = outcome_of(chat, record), [name, case] if name else [case]
        if not len(part.rows):
            left_out = found.reason(part, 0)
            if outcome.kind != "raises":
                outcome = outcome._replace(kind="refused", reason=left_out.reason, message=left_out.message)
            cases.append(Case(case, outcome, dataclasses.replace(left_out, place=" · ".join(title))))
            continue
        notes = [f"not written: {', '.join(outcome.lost)}"] if outcome.lost else []
        notes += ["a run rejects the record"] if outcome.reason else []
        row = found.rows(part, 0)[0]
        cases.append(Case(case, outcome, dataclasses.replace(row, title=title, notes=notes, domain=name)))
    return cases


def _as_json(case: Case) -> dict[str, Any]:
    """The outcome of a conversation, with the text of its row and the trained parts."""
    (name, (kind, reason, message, _), entry), lost = case, case.outcome.lost
    found = {"name": name, "outcome": kind, "reason": reason, "message": message, "not_written": lost}
    if isinstance(entry, LeftOut):
        return found
    (sequence,) = entry.sequences
    pieces, trained = entry.kind.pieces(sequence.ids.tolist()), sequence.trained.tolist()
    runs = itertools.groupby(zip(trained, pieces, strict=True), lambda token: bool(token[0]))
    texts = ["".join(piece for _, piece in run) for is_trained, run in runs if is_trained]
    counts = {"tokens": len(pieces), "trained_tokens": sum(map(int, trained))}
    return {**found, **counts, "text": "".join(pieces), "trained": texts}
