"""`beam-prep inspect FILE --config C --tokenizer_path T`: shows rows of a run before it is run. Writes nothing."""

import dataclasses
import functools
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from beam_prep.config import PipelineConfig
from beam_prep.core.data.block import ALIVE, InputFile, count_outcomes
from beam_prep.core.data.hashing import CHUNK
from beam_prep.core.data.ragged import offsets_of
from beam_prep.core.encoding.tokenizer import Tokenizer
from beam_prep.core.reading.json_list import is_json_file
from beam_prep.core.reading.lost import Lost, lost_records
from beam_prep.core.reading.records import Records
from beam_prep.core.shards.layout import Layout
from beam_prep.core.shards.plan import LedgerTotals, Plan
from beam_prep.core.shards.receipts import ROLE_COUNTS
from beam_prep.core.shards.report import MAX_DROP_RATE, MAX_REJECT_RATE, ConfigView, Findings, failure, lines, warnings
from beam_prep.core.tokens.batch import Batch
from beam_prep.formats.manifest import count_tokens
from beam_prep.inspect.output import checked_count, columns_line, rows_to_show
from beam_prep.inspect.rows import render_row
from beam_prep.inspect.screen import VISIBLE, Screen, legend
from beam_prep.inspect.sequences import RowDisplay
from beam_prep.readers.dataset import drawn
from beam_prep.recipe import chain, layout, read_config, run_steps
from beam_prep.storage.files import list_inputs
from beam_prep.storage.foreign import advice_on
from beam_prep.storage.splits import FIRST_BYTES, first_records, records_at
from beam_prep.storage.tokenizers import load_tokenizer

_AT_ONCE = 4096  # lines, if nothing was found in fewer
_PROBLEMS = 10  # shown one by one
_TEXT = 200  # characters of a record that is left out

_DROPPED = {
    "empty": "there is nothing to encode",
    "too_short": "every text field is shorter than preprocessing.min_chars, which is {min_chars:,}",
    "too_long": "longer than max_chars, {max_chars:,} characters, or {limit}, {tokens:,} tokens",
    "untrained": "no token of it is trained on (preprocessing.untrained: 'keep' keeps it)",
}


def preview(
    inputs: Sequence[str] | str,
    config: PipelineConfig | str | os.PathLike[str],
    tokenizer_path: str | os.PathLike[str],
    count: int | None = None,
) -> None:
    """Prints rows that a run would write, the outcome of other records, and what the run would say.

    It looks at some of the records, always the same ones: at the beginning of the files, and at places farther on. Of
    their rows it shows the first, the shortest, the longest, and a few that are drawn.

    Args:
        inputs: paths and globs of JSONL files, as for a run.
        config: a config, or the path of its JSON file.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub.
        count: print this many rows instead, the first ones, with the outcome of the records between them.

    Raises:
        ConfigError, InputError, TokenizerError, RunError: if a run with these arguments would raise them.
    """
    count = None if count is None else checked_count(count)
    name = "the config" if isinstance(config, PipelineConfig) else os.fspath(config)
    if not isinstance(config, PipelineConfig):
        config = read_config(config)
    files = list_inputs([inputs] if isinstance(inputs, str) else list(inputs))
    tokenizer = load_tokenizer(tokenizer_path)
    config.check_vocabulary(tokenizer.max_id)
    screen = Screen()
    screen.show(_texts(_Job(config, name, tokenizer, files, count, screen)))


@dataclass(frozen=True)
class _Job:
    """The arguments of `preview`, loaded."""

    config: PipelineConfig
    name: str
    tokenizer: Tokenizer
    files: Sequence[InputFile]
    count: int | None
    screen: Screen

    @functools.cached_property
    def layout(self) -> Layout:
        return layout(self.config, self.tokenizer)

    def unpacked(self, batch: Batch) -> Layout:
        """The layout of the rows of a block, each of which stands alone."""
        if self.layout.packing == "none":
            return self.layout
        names = {column: name for column, name in self.layout.names.items() if column in batch.schema}
        return dataclasses.replace(self.layout, packing="none", position_ids="none", names=names)


def prepare(records: Records, config: PipelineConfig, tokenizer: Tokenizer) -> Batch:
    """The rows that a run spools of a block: all of a config but packing, padding and position ids.

    The steps of `recipe.chain`, and what `Shard` does before it spools them, without Beam.

    Raises:
        BeamPrepError: the config asks for what the tokenizer does not have; a sequence is too long, and
            `truncation_mode` is `error`.
    """
    batch = run_steps(chain(config, tokenizer), records)
    eos_id, untrained = tokenizer.id_of("eos_token"), config.preprocessing.untrained
    return layout(config, tokenizer).spooled(batch, eos_id, untrained, config.columns())


def _texts(job: _Job) -> Iterator[Text]:
    """The texts to print: a head, rows and records that are left out, and what a run would say."""
    sample = list(_sample(job))  # raises problems of the config or a file before the head
    rows = _sampled_rows(job, sample) if job.count is None else _first_rows(job, job.count)
    first = list(itertools.islice(rows, 1))
    yield _head(job)
    yield from first
    yield from rows
    yield _report(job, sample)


def _first_rows(job: _Job, count: int) -> Iterator[Text]:
    """The first rows, the records left out between them, and at the end a note if there are fewer."""
    kept = left_out = 0
    more: Counter[str] = Counter()
    for entry in _entries(job, count):
        if kept == count:
            break
        if isinstance(entry, Text):
            kept += 1
            yield entry
        elif left_out < _PROBLEMS:
            left_out += 1
            yield _problem(entry)
        else:
            more[f"{entry.reason} ({entry.kind})"] += 1
    if more:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in more.items())
        yield Text(f"{more.total():,} more records are left out: {counts}")
    if kept < count:
        all_was_read = all(file.size <= FIRST_BYTES and file.compression is None for file in job.files)
        found = f"{kept:,} row{'s' * (kept != 1)}"
        yield Text(f"{found} in {'all' if all_was_read else f'the first {FIRST_BYTES // 1024:,} KB of each file'}")


_FILES = 8  # looked at
_PARTS = 12  # of all files
_PART_BYTES = CHUNK
_HEAD_BYTES = 4 * CHUNK


def _sample(job: _Job) -> Iterator[Batch]:
    """A few blocks of the input: the beginning of files, and parts of plain files farther on."""
    some = drawn(len(job.files), _FILES, first=True).tolist()
    head = max(CHUNK, _HEAD_BYTES // len(some) // CHUNK * CHUNK)
    for index in some:
        source = job.files[index]
        parts = [first_records(source, index, head)]
        if source.compression is None and not is_json_file(source.path) and source.size > head:
            places = (source.size - head - 1) // _PART_BYTES + 1
            for place in drawn(places, _PARTS // len(some) - 1).tolist():
                parts.append(records_at(source, index, head + place * _PART_BYTES, _PART_BYTES))
        yield from (prepare(records, job.config, job.tokenizer) for records in parts if records is not None)


def _sampled_rows(job: _Job, sample: Sequence[Batch]) -> Iterator[Text]:
    """Rows of the sample: the first, the shortest, the longest, a few that are drawn; and a record for each problem."""
    starts = offsets_of([len(batch) for batch in sample])
    sizes = np.concatenate([np.zeros(0, np.int64), *map(job.layout.tokens, sample)])
    shown = [_Shown(job, batch) for batch in sample]
    for number, why in rows_to_show(np.arange(len(sizes)), sizes, len(sizes)).items():
        place = int(np.searchsorted(starts, number, side="right")) - 1
        yield shown[place].row(number - int(starts[place]), why)
    problems: dict[str, _LeftOut] = {}
    for batch, each in zip(sample, shown, strict=True):
        for code, (kind, reason) in enumerate(batch.ledger.outcomes, start=1):
            first = np.flatnonzero(batch.ledger.status == code)[:1].tolist()
            if kind != "blank" and reason not in problems and first:
                problems[reason] = each.left_out(first[0])
    yield from map(_problem, list(problems.values())[:_PROBLEMS])


def _report(job: _Job, sample: Sequence[Batch]) -> Text:
    """The report that a run on these records would give."""
    plan, found = _as_planned(job, sample)
    config, ledger = ConfigView.of(job.config.canonical()), plan.ledger
    where = (
        "all of the input" if len(sample) == 1 and _is_all(job.files, sample[0]) else f"{len(sample):,} places of it"
    )
    text = Text().append(f"{ledger.read:,} records looked at, {where}", "bold")
    share = f" ({found.trained / found.tokens:.1%} trained)" if found.trained else ""
    text.append(f"\n{ledger.kept:,} kept, {found.tokens:,} tokens{share}")
    for kind, counts in (("dropped", ledger.dropped), ("rejected", ledger.rejected)):
        if counts:
            text.append(f"\n{kind}: {', '.join(f'{count:,} {reason}' for reason, count in sorted(counts.items()))}")
    for line in lines(found, config):
        text.append(f"\n{line}".translate(VISIBLE))
    if (problem := failure(plan, config, MAX_REJECT_RATE, MAX_DROP_RATE)) is not None:
        if (advice := advice_on(job.files, problem, config.fields)) is not None:
            problem += f"; {advice}"
        text.append(f"\na run on these would fail: {problem}".translate(VISIBLE), "bold red")
    else:
        for warning in warnings(found, config):
            text.append(f"\nwarning: {warning}".translate(VISIBLE), "yellow")
    return text


def _is_all(files: Sequence[InputFile], batch: Batch) -> bool:
    return len(files) == 1 and files[0].compression is None and batch.origin.size == files[0].size


def _as_planned(job: _Job, sample: Sequence[Batch]) -> tuple[Plan, Findings]:
    """What a run would know of these blocks, had it no others."""
    kinds = {kind: Counter[str]() for kind in ("dropped", "rejected", "counter", "tokens", "trained")}
    roles: dict[str, Counter[str]] = {}
    lost: list[tuple[str, int, Lost]] = []
    first_reject = None
    total = blank = 0
    for batch in sample:
        ledger, path = batch.ledger, batch.origin.source.path
        counts = count_outcomes(ledger.status, ledger.outcomes)
        total, blank = total + len(ledger.status), blank + counts["blank"]
        for kind in ("dropped", "rejected"):
            kinds[kind].update(counts[kind])
        written = job.unpacked(batch)
        columns = written.columns(tuple(batch.schema.values()))
        for rows, _ in written.rows([(batch.columns, None)], columns):
            for kind, more in count_tokens(columns, rows).items():
                kinds[kind].update(more)
        kinds["counter"].update({name: int(per_row.sum()) for name, per_row in batch.counters.items()})
        for role, said in batch.roles.count(batch.line, len(ledger.status)).sums().items():
            roles.setdefault(role, Counter()).update(dict(zip(ROLE_COUNTS, said, strict=True)))
        lost += [(path, batch.origin.first_byte + record.offset, record) for record in lost_records(ledger)]
        if first_reject is None and ledger.messages:
            line = min(ledger.messages)
            offset = batch.origin.first_byte + int(ledger.starts[line])
            reason = ledger.outcomes[ledger.status[line] - 1][1]
            first_reject = {"file": path, "offset": offset, "reason": reason, "message": ledger.messages[line]}
    whole = LedgerTotals(total, blank, sum(map(len, sample)), dict(kinds["dropped"]), dict(kinds["rejected"]))
    inputs = [{"path": file.path} for file in job.files]
    by_role = {role: dict(counts) for role, counts in roles.items()}
    plan = Plan(
        shards=(),
        rejects=(),
        ledger=whole,
        counters=dict(kinds["counter"]),
        inputs=inputs,
        columns=(),
        domains={},
        shards_of={},
        blocks=len(sample),
        reused=0,
        made={},
        roles=by_role,
        lost=tuple(lost),
        first_reject=first_reject,
    )
    cut = kinds["counter"]["truncated_tokens"]
    return plan, Findings(by_role, kinds["tokens"].total(), kinds["trained"].total(), cut)


def _head(job: _Job) -> Text:
    config, step = job.config, job.config.preprocessing
    shifted = step.shift if config.output.columns == "labels" else None
    files = job.files[0].path if len(job.files) == 1 else f"{len(job.files):,} files"
    text = Text().append(files, "bold")
    text.append(
        f": {'rows' if job.count is None else 'the first rows'}, as {job.name} makes them; nothing is written\n"
    )
    text.append(f"{columns_line(config.written(), shifted)}\n")
    if step.packing_strategy != "none":
        size = step.max_packed_len or step.max_seq_len
        text.append(f"packing: {step.packing_strategy}, {size:,} tokens a row; here each document is shown alone\n")
    for warning in config.warnings:
        text.append(f"config: {warning}\n")
    return text.append_text(legend(job.screen.marks))


@dataclass(frozen=True)
class _LeftOut:
    """A record that becomes no row: its place, `dropped` or `rejected`, the reason, and the beginning of its text."""

    place: str
    kind: str
    reason: str
    message: str
    text: str


def _problem(record: _LeftOut) -> Text:
    text = Text().append(f"━━ {record.place} · {record.kind}: {record.reason}".translate(VISIBLE), "bold red")
    text.append(f"\n{record.message}".translate(VISIBLE) if record.message else "")
    return text.append(f"\n── {record.text}".translate(VISIBLE), "dim")


def _entries(job: _Job, count: int) -> Iterator[Text | _LeftOut]:
    """The outcome of each record, in order: the text of its row, or why there is none."""
    for index, source in enumerate(job.files):
        records = first_records(source, index)
        start, at_once = 0, max(count, 1)
        while records is not None and start < len(records.ledger.starts):
            stop = min(start + at_once, len(records.ledger.starts))
            batch = prepare(_lines(records, start, stop), job.config, job.tokenizer)
            yield from _outcomes(job, batch, range(start, stop))
            start, at_once = stop, min(2 * at_once, max(count, _AT_ONCE))


def _lines(records: Records, start: int, stop: int) -> Records:
    """The records of the lines from `start` to `stop`."""
    return records.part(range(*np.searchsorted(records.line, [start, stop]).tolist()))


def _outcomes(job: _Job, batch: Batch, lines: range) -> Iterator[Text | _LeftOut]:
    """The outcome of each of these lines of a block."""
    shown = _Shown(job, batch)
    rows = {line: row for row, line in enumerate(batch.line.tolist())}
    for line in lines:
        status = int(batch.ledger.status[line])
        if status == ALIVE:
            yield shown.row(rows[line])
        elif batch.ledger.outcomes[status - 1][0] != "blank":
            yield shown.left_out(line)


class _Shown:
    """The rows of a block as texts."""

    def __init__(self, job: _Job, batch: Batch) -> None:
        self._job, self._batch = job, batch
        self._layout = job.unpacked(batch)
        self._schema = self._layout.columns(tuple(batch.schema.values()))

    def row(self, row: int, why: str = "") -> Text:
        """The text of a row that is kept."""
        job, batch = self._job, self._batch
        path = batch.origin.source.path
        display = RowDisplay(
            self._schema, job.tokenizer, job.config.canonical(), path, job.screen.marks, job.screen.width
        )
        own = {name: column[row : row + 1] for name, column in batch.columns.items()}
        columns, _ = next(self._layout.rows([(own, None)], self._schema))
        rows = len(next(iter(columns.values())))  # several if it is cut into chunks
        text = Text()
        for number in range(rows):
            chunk = f"chunk {number + 1:,} of {rows:,}" if rows > 1 else ""
            title = [self._place(int(batch.line[row])), chunk, why, f"domain {batch.domain[row]}"]
            values = {name: column[number] for name, column in columns.items()}
            text.append_text(render_row(display, values, [part for part in title if part], _counted(batch, row)))
        return text

    def left_out(self, line: int) -> _LeftOut:
        """Says why a line that is not blank became no row."""
        ledger = self._batch.ledger
        kind, reason = ledger.outcomes[int(ledger.status[line]) - 1]
        why = _DROPPED.get(reason, "") if kind == "dropped" else ledger.messages[line]
        if kind == "dropped":
            step, plan = self._job.config.preprocessing, self._job.layout
            packed = plan.cuts and plan.capacity < step.max_seq_len
            limit, tokens = ("max_packed_len", plan.capacity) if packed else ("max_seq_len", step.max_seq_len)
            why = why.format(**step.model_dump(), limit=limit, tokens=tokens)
        text = ledger.text(line, _TEXT + 1)
        return _LeftOut(self._place(line), kind, reason, why, text if len(text) <= _TEXT else f"{text[:_TEXT]} ...")

    def _place(self, line: int) -> str:
        origin = self._batch.origin
        if origin.start:  # nobody has counted the lines before
            return f"{origin.source.path}, byte offset {origin.first_byte + int(self._batch.ledger.starts[line]):,}"
        return f"{origin.source.path}, {'record' if is_json_file(origin.source.path) else 'line'} {line + 1:,}"


def _counted(batch: Batch, row: int) -> list[str]:
    """The counters of a kept row: `truncated_tokens: 12`."""
    return [f"{name}: {counts[row]:,}" for name, counts in batch.counters.items() if counts[row]]
