"""`beam-prep inspect FILE --config C --tokenizer_path T`: shows rows of a run before it is run. Writes nothing."""

import dataclasses
import functools
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.text import Text

from beam_prep.config import PipelineConfig
from beam_prep.data.block import ALIVE, TEXT_LIMIT, InputFile, count_outcomes, drawn
from beam_prep.data.hashing import CHUNK
from beam_prep.data.metadata import metadata_value, placed
from beam_prep.data.ragged import Array, offsets_of
from beam_prep.data.receipts import ROLE_COUNTS
from beam_prep.formats.manifest import count_tokens
from beam_prep.inspect.left_out import LeftOut, left_out_text
from beam_prep.inspect.output import columns_line, no_reason, or_nothing, rows_to_show
from beam_prep.inspect.page import LEFT_OUT, ROWS, Head, check_page, write_page
from beam_prep.inspect.picture import Screen, legend
from beam_prep.inspect.rows import ShownRow
from beam_prep.inspect.selection import EXTREMES, Selection, extremes
from beam_prep.inspect.sequences import VISIBLE, RowDisplay, percent, role_key
from beam_prep.reading.records import CONTAMINATED, Records
from beam_prep.reading.sources import source_of
from beam_prep.recipe import chain, files_of_groups, inputs_of, layout, read_config, references_of, run_steps
from beam_prep.shards.layout import Layout
from beam_prep.shards.plan import Dropped, LedgerTotals, Plan, dropped_in
from beam_prep.shards.report import MAX_NO_LOSS_RATE, MAX_REJECT_RATE, ConfigView, Findings, failure, lines, warnings
from beam_prep.storage.foreign import advice_on
from beam_prep.storage.splits import FIRST_BYTES, first_records, is_stream, records_at
from beam_prep.storage.tokenizers import load_tokenizer
from beam_prep.tokens.batch import CUT_TOKENS, Batch
from beam_prep.tokens.token_roles import followed, is_of_labels, is_role_column, with_roles, without_roles
from beam_prep.tokens.tokenizer import Tokenizer
from beam_prep.transforms.steps import BuildMask, Labels, Shift, SplitPrompt

_AT_ONCE = 4096  # lines, if nothing was found in fewer
_PROBLEMS = 10  # shown one by one

_DROPPED = {
    "empty": "there is nothing to encode",
    "too_short": "every text field is shorter than preprocessing.min_chars, which is {min_chars:,}",
    "too_long": "longer than max_chars, {max_chars:,} characters, or {limit}, {tokens:,} tokens",
    "rows_without_loss": "no token of it is trained on (preprocessing.rows_without_loss: 'keep' keeps it)",
}


def preview(
    inputs: Sequence[str] | str | None,
    config: PipelineConfig | str | os.PathLike[str],
    tokenizer_path: str | os.PathLike[str],
    count: int | None = None,
    *,
    random: int | None = None,
    seed: int | None = None,
    shortest: bool = False,
    longest: bool = False,
    grep: str | None = None,
    reason: str | None = None,
    ids: bool = False,
    html: str | os.PathLike[str] | None = None,
    pager: bool = False,
) -> None:
    """Prints rows that a run would write, the outcome of other records, and what the run would say.

    It looks at some of the records, always the same ones: at the beginning of the files, and at places farther on. Of
    their rows it shows the first, the shortest, the longest, and a few that are drawn.

    Args:
        inputs: paths and globs of JSONL files, as for a run; None: the config names them.
        config: a config, or the path of its JSON file.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub.
        count: print this many rows instead, the first ones, with the outcome of the records between them.
        random, seed, shortest, longest, grep, reason: others of the records that it looks at, see `Selection`.
        ids: print each token's id in front of it.
        html: write a page for a browser to this file instead, with the roles of tokens. Unless records are chosen, it
            has 1,000 rows that are drawn (all, if there are no more), and of each reason the first records left out.
        pager: in a terminal, give the text to `$PAGER`, or to `less -R`.

    Raises:
        BeamPrepError: two arguments exclude each other; nothing was left out for this reason.
        ConfigError, InputError, TokenizerError, RunError: if a run with these arguments would raise them.
    """
    selection = Selection(
        count=count, random=random, seed=seed, shortest=shortest, longest=longest, grep=grep, reason=reason
    )
    if html is not None:
        check_page(html)
    name = "the config" if isinstance(config, PipelineConfig) else os.fspath(config)
    if not isinstance(config, PipelineConfig):
        config = read_config(config)
    files = inputs_of(config, inputs)
    tokenizer = load_tokenizer(tokenizer_path)
    config.check_vocabulary(tokenizer.max_id)
    screen = Screen(pager)
    job = Job(config, name, tokenizer, files, selection, screen, ids, roles=html is not None)
    if html is None:
        screen.show(_texts(job))
    else:
        _write(job, html)


@dataclass(frozen=True)
class Job:
    """The arguments of `preview`, loaded. With `roles`, rows have the roles of their tokens."""

    config: PipelineConfig
    name: str
    tokenizer: Tokenizer
    files: Sequence[InputFile]
    selection: Selection
    screen: Screen
    ids: bool
    roles: bool

    @property
    def first(self) -> bool:
        """True if the first rows are asked for, and no others."""
        return self.selection.count is not None and not self.selection.searches

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
    """The rows that a run caches of a block: all of a config but packing, padding and position ids.

    The steps of `recipe.chain`, and what `Shard` does before it caches them, without Beam.

    Raises:
        BeamPrepError: the config asks for what the tokenizer does not have; a sequence is too long, and
            `truncation_mode` is `error`.
    """
    steps = chain(config.part(records.origin.source.group), tokenizer)
    return _cached(run_steps(steps, records), config, tokenizer)


def _prepared(job: Job, records: Records) -> Batch:
    """What `prepare` gives; if the job asks for roles, with columns of them."""
    if not job.roles:
        return prepare(records, job.config, job.tokenizer)
    block: Any = records
    for step in chain(job.config.part(records.origin.source.group), job.tokenizer):
        if isinstance(step, BuildMask):
            block = with_roles(block, step.step()(block))
        elif isinstance(step, (Labels, Shift, SplitPrompt)):
            block = followed(block, step.step()(without_roles(block)))
        else:
            block = step.step()(block)
    return _cached(block, job.config, job.tokenizer)


def _cached(batch: Batch, config: PipelineConfig, tokenizer: Tokenizer) -> Batch:
    eos_id, rows_without_loss = tokenizer.id_of("eos_token"), config.preprocessing.rows_without_loss
    return layout(config, tokenizer).cached(batch, eos_id, rows_without_loss, config.columns())


def _texts(job: Job) -> Iterator[Text]:
    """The texts to print: a head, rows and records that are left out, and what a run would say."""
    sample = list(_sample(job))  # raises problems of the config or a file before the head
    texts: Iterator[Text] = (_text(job, entry) for entry in _chosen(job, sample))
    if job.selection.grep is not None:
        where = "the records left out" if job.selection.reason is not None else f"{sum(map(len, sample)):,} rows"
        texts = or_nothing(texts, where, job.selection)
    first = list(itertools.islice(texts, 1))
    yield _head(job)
    yield from first
    yield from texts
    yield _report(job, sample)


_Entry = ShownRow | LeftOut | Text


def _text(job: Job, entry: _Entry) -> Text:
    if isinstance(entry, LeftOut):
        return left_out_text(entry)
    return entry if isinstance(entry, Text) else entry.text(job.screen, job.ids, job.selection.pattern)


def _write(job: Job, path: str | os.PathLike[str]) -> None:
    """Writes a page."""
    sample = list(_sample(job))
    notes: list[str] = []
    found: Counter[type[ShownRow | LeftOut]] = Counter()

    def entries() -> Iterator[ShownRow | LeftOut]:
        for entry in _page_entries(job, sample):
            if isinstance(entry, Text):
                notes.append(entry.plain)
                continue
            found[type(entry)] += 1
            yield entry

    def head() -> Head:
        lines = [*_head(job).plain.split("\n")[:-1], *notes, *_report(job, sample).plain.split("\n")]
        rows, left = found[ShownRow], found[LeftOut]
        shown = f"{rows:,} row{'s' * (rows != 1)} and {left:,} record{'s' * (left != 1)} left out"
        where = "" if job.first else f"; rows that were looked at: {sum(map(len, sample)):,}"
        return Head(
            _files(job), f"before a run, as {job.name} makes them: {shown}{where}", _numbers(job, sample), lines
        )

    written = write_page(path, entries(), head)
    print(f"{path}: {written:,} record{'s' * (written != 1)}; open it in a browser")


def _page_entries(job: Job, sample: Sequence[Batch]) -> Iterator[_Entry]:
    """The entries of a page."""
    chosen = job.selection
    if chosen.narrows:
        some = dataclasses.replace(chosen, count=ROWS) if chosen.searches and chosen.count is None else chosen
        yield from _chosen(dataclasses.replace(job, selection=some), sample)
        return
    total = sum(map(len, sample))
    yield from _numbered(job, sample, ((number, "") for number in drawn(total, ROWS).tolist()))
    left = Counter[str]()
    for record in _left_out(job, sample):
        left[record.reason] += 1
        if left[record.reason] <= LEFT_OUT:
            yield record


def _chosen(job: Job, sample: Sequence[Batch]) -> Iterator[_Entry]:
    """What the selection asks for."""
    chosen = job.selection
    if job.first:
        yield from _first_rows(job, chosen.count or 0)
    elif chosen.reason is not None:
        yield from itertools.islice(_of_reason(job, sample), chosen.count)
    elif chosen.pattern is not None:
        pattern = chosen.pattern
        rows = _numbered(job, sample, ((number, "") for number in range(sum(map(len, sample)))))
        yield from itertools.islice((row for row in rows if row.contains(pattern)), chosen.count)
    elif chosen.random is not None:
        numbers = drawn(sum(map(len, sample)), chosen.random, seed=chosen.seed or 0).tolist()
        yield from _numbered(job, sample, ((number, "drawn") for number in numbers))
    elif chosen.shortest or chosen.longest:
        sizes = _sizes(job, sample)
        ranked = extremes(
            [(np.arange(len(sizes)), sizes)], EXTREMES if chosen.count is None else chosen.count, chosen.longest
        )
        name = "longest" if chosen.longest else "shortest"
        ranks = enumerate(ranked, start=1)
        yield from _numbered(job, sample, ((number, f"number {rank:,} of the {name}") for rank, (number, _) in ranks))
    else:
        yield from _sampled_rows(job, sample)


def _of_reason(job: Job, sample: Sequence[Batch]) -> Iterator[LeftOut]:
    """The records that were left out, or marked, for the reason that is asked for.

    Raises:
        BeamPrepError: there are none.
    """
    chosen = job.selection
    kinds: dict[str, Counter[str]] = {"dropped": Counter(), "rejected": Counter(), "marked": Counter()}
    found = False
    for record in itertools.chain(_left_out(job, sample), _marked(job, sample)):
        kinds[record.kind][record.reason] += 1
        if chosen.says(record.kind, record.reason):
            found = True
            if chosen.pattern is None or chosen.pattern.search(record.text):
                yield record
    if not found:
        raise no_reason(f"those that were looked at in {_files(job)}", chosen, kinds)


def _marked(job: Job, sample: Sequence[Batch]) -> Iterator[LeftOut]:
    """All records of the sample that are kept and marked."""
    for batch in sample:
        shown = _Shown(job, batch)
        for line in batch.line[np.isin(batch.line, list(batch.ledger.notes))].tolist():
            yield shown.left_out(line)


def _left_out(job: Job, sample: Sequence[Batch]) -> Iterator[LeftOut]:
    """All records of the sample that became no row."""
    for batch in sample:
        shown = _Shown(job, batch)
        for line in np.flatnonzero(batch.ledger.status != ALIVE).tolist():
            if batch.ledger.outcomes[int(batch.ledger.status[line]) - 1][0] != "blank":
                yield shown.left_out(line)


def _first_rows(job: Job, count: int) -> Iterator[_Entry]:
    """The first rows, the records left out between them, and at the end a note if there are fewer."""
    kept = left_out = 0
    more: Counter[str] = Counter()
    for entry in _entries(job, count):
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
        yield Text(f"{more.total():,} more records are left out: {counts}")
    if kept < count:
        all_was_read = all(file.size <= FIRST_BYTES and file.compression is None for file in job.files)
        found = f"{kept:,} row{'s' * (kept != 1)}"
        yield Text(f"{found} in {'all' if all_was_read else f'the first {FIRST_BYTES // 1024:,} KB of each file'}")


_FILES = 8  # looked at
_PARTS = 12  # of all files
_PART_BYTES = CHUNK
_HEAD_BYTES = 4 * CHUNK


def _sample(job: Job) -> Iterator[Batch]:
    """A few blocks of the input: the beginning of files, and parts of plain files farther on."""
    groups: dict[int | None, list[int]] = {}
    for index, file in enumerate(job.files):
        groups.setdefault(file.group, []).append(index)
    each = max(1, _FILES // len(groups))
    some = [files[place] for files in groups.values() for place in drawn(len(files), each, first=True).tolist()]
    head = max(CHUNK, _HEAD_BYTES // len(some) // CHUNK * CHUNK)
    for index in some:
        source = job.files[index]
        parts = [first_records(source, index, head)]
        if not is_stream(source) and source.size > head:
            places = (source.size - head - 1) // _PART_BYTES + 1
            for place in drawn(places, max(0, _PARTS // len(some) - 1)).tolist():
                parts.append(records_at(source, index, head + place * _PART_BYTES, _PART_BYTES))
        yield from (_prepared(job, records) for records in parts if records is not None)


def _sizes(job: Job, sample: Sequence[Batch]) -> Array:
    """int64: the tokens of each row of the sample."""
    return np.concatenate([np.zeros(0, np.int64), *map(job.layout.tokens, sample)])


def _numbered(job: Job, sample: Sequence[Batch], chosen: Iterable[tuple[int, str]]) -> Iterator[ShownRow]:
    """Rows of the sample by their numbers, each with why it is shown."""
    starts = offsets_of([len(batch) for batch in sample])
    shown = [_Shown(job, batch) for batch in sample]
    for number, why in chosen:
        place = int(np.searchsorted(starts, number, side="right")) - 1
        yield from shown[place].row(number - int(starts[place]), why)


def _sampled_rows(job: Job, sample: Sequence[Batch]) -> Iterator[ShownRow | LeftOut]:
    """Rows of the sample: the first, the shortest, the longest, a few that are drawn; and a record for each problem."""
    sizes = _sizes(job, sample)
    yield from _numbered(job, sample, rows_to_show(np.arange(len(sizes)), sizes, len(sizes)).items())
    problems: dict[str, LeftOut] = {}
    for batch in sample:
        each = _Shown(job, batch)
        for code, (kind, reason) in enumerate(batch.ledger.outcomes, start=1):
            first = np.flatnonzero(batch.ledger.status == code)[:1].tolist()
            if kind != "blank" and reason not in problems and first:
                problems[reason] = each.left_out(first[0])
    yield from list(problems.values())[:_PROBLEMS]


def _report(job: Job, sample: Sequence[Batch]) -> Text:
    """The report that a run on these records would give."""
    plan, found = _as_planned(job, [without_roles(batch) for batch in sample])
    config, ledger = ConfigView.of(job.config.canonical(), files_of_groups(job.files)), plan.ledger
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
    if (problem := failure(plan, config, MAX_REJECT_RATE, MAX_NO_LOSS_RATE)) is not None:
        if (advice := advice_on(job.files, problem, config.fields)) is not None:
            problem += f"; {advice}"
        text.append(f"\na run on these would fail: {problem}".translate(VISIBLE), "bold red")
    else:
        for warning in warnings(found, config):
            text.append(f"\nwarning: {warning}".translate(VISIBLE), "yellow")
    return text


def _is_all(files: Sequence[InputFile], batch: Batch) -> bool:
    return len(files) == 1 and not is_stream(files[0]) and batch.origin.size == files[0].size


def _as_planned(job: Job, sample: Sequence[Batch]) -> tuple[Plan, Findings]:
    """What a run would know of these blocks, had it no others."""
    kinds = {kind: Counter[str]() for kind in ("dropped", "rejected", "counter", "tokens", "trained")}
    roles: dict[str, Counter[str]] = {}
    dropped: list[Dropped] = []
    first_rejects: list[dict[str, Any]] = []
    total = blank = 0
    of_files = np.zeros((len(job.files), 2), np.int64)
    for batch in sample:
        ledger, path = batch.ledger, batch.origin.source.path
        counts = count_outcomes(ledger.status, ledger.outcomes)
        total, blank = total + len(ledger.status), blank + counts["blank"]
        of_files[batch.origin.file] += (len(ledger.status) - counts["blank"], len(batch))
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
        dropped += dropped_in(batch, TEXT_LIMIT)
        if not first_rejects and ledger.messages:
            line = min(ledger.messages)
            offset = batch.offset(line)
            reason = ledger.outcomes[ledger.status[line] - 1][1]
            message = ledger.messages[line]
            first_rejects.append({"file": path, "offset": offset, "reason": reason, "message": message})
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
        drops=tuple(dropped),
        first_rejects=tuple(first_rejects),
        of_files=of_files,
    )
    cut = kinds["counter"][CUT_TOKENS]
    tokens, trained, not_text = kinds["tokens"].total(), kinds["trained"].total(), kinds["rejected"]["not_text"]
    return plan, Findings(by_role, tokens, trained, cut, counters=kinds["counter"], not_text=not_text)


def _head(job: Job) -> Text:
    config, step = job.config, job.config.preprocessing
    shifted = step.shift if config.output.columns == "labels" else None
    text = Text().append(_files(job), "bold")
    text.append(f": {'the first rows' if job.first else 'rows'}, as {job.name} makes them; nothing is written\n")
    text.append(f"{columns_line(config.written(), shifted)}\n")
    if step.packing_strategy != "none":
        size = step.max_packed_len or step.max_seq_len
        text.append(f"packing: {step.packing_strategy}, {size:,} tokens a row; here each document is shown alone\n")
    references = references_of(config)
    for warning in [*config.warnings, *([] if references is None else references.warnings)]:
        text.append(f"config: {warning}\n")
    return text.append_text(legend(job.screen.marks))


def _files(job: Job) -> str:
    return job.files[0].path if len(job.files) == 1 else f"{len(job.files):,} files"


def _numbers(job: Job, sample: Sequence[Batch]) -> list[tuple[str, str, int, str]]:
    """The numbers of the sample, for the head of a page."""
    plan, found = _as_planned(job, [without_roles(batch) for batch in sample])
    numbers = [("read", "records looked at", plan.ledger.read, ""), ("rows", "rows", plan.ledger.kept, "")]
    numbers.append(("tokens", "tokens", found.tokens, ""))
    if found.trained:
        numbers.append(("trained", "trained tokens", found.trained, percent(found.trained, found.tokens)))
    for kind, counts in (("dropped", plan.ledger.dropped), ("rejected", plan.ledger.rejected)):
        numbers += [(f"{kind}.{reason}", f"{kind}: {reason}", count, "") for reason, count in sorted(counts.items())]
    return numbers


def _entries(job: Job, count: int) -> Iterator[list[ShownRow] | LeftOut]:
    """The outcome of each record, in order: its row (or its chunks), or why there is none."""
    for index, source in enumerate(job.files):
        records = first_records(source, index)
        start, at_once = 0, max(count, 1)
        while records is not None and start < len(records.ledger.starts):
            stop = min(start + at_once, len(records.ledger.starts))
            batch = _prepared(job, _lines(records, start, stop))
            yield from _outcomes(job, batch, range(start, stop))
            start, at_once = stop, min(2 * at_once, max(count, _AT_ONCE))


def _lines(records: Records, start: int, stop: int) -> Records:
    """The records of the lines from `start` to `stop`."""
    return records.part(range(*np.searchsorted(records.line, [start, stop]).tolist()))


def outcomes_of(job: Job, records: Records) -> Iterator[list[ShownRow] | LeftOut]:
    """The outcome of each record of a block, in order: its row (or its chunks), or why there is none."""
    return _outcomes(job, _prepared(job, records), range(len(records.ledger.starts)))


def _outcomes(job: Job, batch: Batch, lines: range) -> Iterator[list[ShownRow] | LeftOut]:
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
    """The rows of a block, ready to show."""

    def __init__(self, job: Job, batch: Batch) -> None:
        self._job, self._batch = job, batch
        self._layout = job.unpacked(batch)
        self._schema = self._layout.columns(tuple(batch.schema.values()))
        schema = tuple(column for column in self._schema if not is_role_column(column))
        self._display = RowDisplay(schema, job.tokenizer, job.config.canonical(), batch.origin.source.path)

    def row(self, row: int, why: str = "") -> list[ShownRow]:
        """A row that is kept; several, if it is cut into chunks or has its turns apart."""
        batch = self._batch
        own = {name: column[row : row + 1] for name, column in batch.columns.items()}
        if self._layout.provenance:
            own = placed(own, batch.origin.file, batch.origin.first_byte)
        columns, _ = next(self._layout.rows([(own, None)], self._schema))
        rows = len(next(iter(columns.values())))
        found = []
        for number in range(rows):
            kind = "row" if self._layout.chunking is None else "chunk"
            chunk = f"{kind} {number + 1:,} of {rows:,}" if rows > 1 else ""
            note = batch.ledger.notes.get(int(batch.line[row]), "")
            title = [self._place(int(batch.line[row])), chunk, why, f"domain {batch.domain[row]}", note]
            values: dict[str, Any] = {
                role_key(column.of or "", is_of_labels(column)) if is_role_column(column) else column.name: columns[
                    column.name
                ][number]
                for column in self._schema
            }
            values |= {c.name: metadata_value(c, values[c.name]) for c in self._schema if c.metadata}
            found.append(
                ShownRow(
                    self._display,
                    values,
                    [part for part in title if part],
                    batch.domain[row],
                    _counted(batch, row),
                    batch.roles.names,
                )
            )
        return found

    def left_out(self, line: int) -> LeftOut:
        """Says why a line that is not blank became no row, or is marked."""
        ledger, status = self._batch.ledger, int(self._batch.ledger.status[line])
        kind, reason = ("marked", CONTAMINATED) if status == ALIVE else ledger.outcomes[status - 1]
        why = ledger.messages[line] if kind == "rejected" else ledger.notes.get(line, "")
        if kind == "dropped" and reason in _DROPPED:
            step, plan = self._job.config.preprocessing, self._job.layout
            packed = plan.cuts and plan.capacity < step.max_seq_len
            limit, tokens = ("max_packed_len", plan.capacity) if packed else ("max_seq_len", step.max_seq_len)
            why = _DROPPED[reason].format(**step.model_dump(), limit=limit, tokens=tokens)
        return LeftOut(self._place(line), kind, reason, why, ledger.text(line, TEXT_LIMIT))

    def _place(self, line: int) -> str:
        path, offset = self._batch.origin.source.path, self._batch.offset(line)
        kind = source_of(path)
        if kind.by_row:
            return f"{path}, {kind.place(offset + 1)}"
        if self._batch.origin.start:  # nobody has counted the lines before
            return f"{path}, byte offset {offset:,}"
        return f"{path}, {kind.place(line + 1)}"


def _counted(batch: Batch, row: int) -> list[str]:
    """The counters of a kept row: `truncated_tokens: 12`."""
    return [f"{name}: {counts[row]:,}" for name, counts in batch.counters.items() if counts[row]]
