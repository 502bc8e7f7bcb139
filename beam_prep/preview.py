"""`beam-prep inspect FILE --config C --tokenizer_path T`: the first rows of a run before it runs. Writes nothing."""

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from beam_prep.config import PipelineConfig
from beam_prep.core.batch import Batch, tokenize
from beam_prep.core.block import ALIVE, InputFile, Ledger
from beam_prep.core.json_list import is_json_file
from beam_prep.core.mask import RoleMask, build_mask
from beam_prep.core.pad import pad
from beam_prep.core.records import Records
from beam_prep.core.shift import to_labels
from beam_prep.core.store import settle
from beam_prep.core.tokenized import from_tokens
from beam_prep.core.tokenizer import Tokenizer
from beam_prep.core.truncate import truncate
from beam_prep.inspect import VISIBLE, Look, Screen, checked_count, columns_line, legend, render_row
from beam_prep.recipe import layout, pad_id_of, read_config, rendered
from beam_prep.transforms._files import list_inputs
from beam_prep.transforms._tokenizers import load_tokenizer
from beam_prep.transforms.read import FIRST_BYTES, first_records

_AT_ONCE = 256  # lines
_PROBLEMS = 10  # that are shown one by one
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
    count: int = 3,
) -> None:
    """Prints the first rows that a run would write, and what became of the records before them.

    Args:
        inputs: paths and globs of JSONL files, as for a run.
        config: a config, or the path of its JSON file.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub.
        count: rows to print.

    Raises:
        ConfigError, InputError, TokenizerError, RunError: as a run with these arguments would.
    """
    count = checked_count(count)
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
    """What `preview` was asked for."""

    config: PipelineConfig
    name: str
    tokenizer: Tokenizer
    files: Sequence[InputFile]
    count: int
    screen: Screen


def prepare(records: Records, config: PipelineConfig, tokenizer: Tokenizer) -> Batch:
    """The rows that a run spools of a block: all of a config but packing and position ids.

    The same steps as `recipe.Prepare` and `Shard`, without Beam.

    Raises:
        BeamPrepError: the config asks for what the tokenizer does not have; a sequence is too long, and
            `truncation_mode` is `error`.
    """
    step = config.preprocessing
    eos_id = tokenizer.id_of("eos_token")
    batch = truncate(_tokenized(records, config, tokenizer), step.max_seq_len, step.truncation_mode, eos_id)
    if config.output.columns == "labels":
        batch = to_labels(batch, step.shift)
    if config.pad_multiple is not None:
        batch = pad(batch, config.pad_multiple, pad_id_of(tokenizer))
    return settle(layout(config).fit(batch, eos_id), step.untrained, config.columns())


def _tokenized(records: Records, config: PipelineConfig, tokenizer: Tokenizer) -> Batch:
    """Ids and masks, uncut."""
    if config.input.tokenized:
        outputs = config.input.outputs(joint=config.preprocessing.encode == "joint")
        return from_tokens(records, outputs[0], tokenizer.max_id, config.output.domain_key)
    batch = tokenize(rendered(records, config, tokenizer), tokenizer, tokenizer.bos_id)
    return build_mask(batch, RoleMask(dict(config.mask), config.mask_default))


def _texts(job: _Job) -> Iterator[Text]:
    """What is printed: a head, the rows with what is left out between them, and what is missing at the end."""
    entries = _entries(job)
    first = list(itertools.islice(entries, 1))  # what is wrong with the config or a file is raised before the head
    yield _head(job)
    kept = left_out = 0
    more: Counter[str] = Counter()
    for entry in itertools.chain(first, entries):
        if kept == job.count:
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
    if kept < job.count:
        whole = all(file.size <= FIRST_BYTES and file.compression is None for file in job.files)
        found = f"{kept:,} row{'s' * (kept != 1)}"
        yield Text(f"{found} in {'all' if whole else f'the first {FIRST_BYTES // 1024:,} KB of each file'}")


def _head(job: _Job) -> Text:
    config, step = job.config, job.config.preprocessing
    shifted = step.shift if config.output.columns == "labels" else None
    files = job.files[0].path if len(job.files) == 1 else f"{len(job.files):,} files"
    text = Text().append(files, "bold")
    text.append(f": the first rows, as {job.name} makes them; nothing is written\n")
    text.append(f"{columns_line(config.written(), shifted)}\n")
    if step.packing_strategy != "none":
        size = step.max_packed_len or step.max_seq_len
        text.append(f"packing: {step.packing_strategy}, {size:,} tokens a row; here each document stands alone\n")
    for warning in config.warnings:
        text.append(f"config: {warning}\n")
    return text.append_text(legend(job.screen.marks))


@dataclass(frozen=True)
class _LeftOut:
    """A record that becomes no row: its place, `dropped` or `rejected`, why, and how it begins."""

    place: str
    kind: str
    reason: str
    message: str
    text: str


def _problem(record: _LeftOut) -> Text:
    text = Text().append(f"━━ {record.place} · {record.kind}: {record.reason}".translate(VISIBLE), "bold red")
    text.append(f"\n{record.message}".translate(VISIBLE) if record.message else "")
    return text.append(f"\n── {record.text}".translate(VISIBLE), "dim")


def _entries(job: _Job) -> Iterator[Text | _LeftOut]:
    """What each record becomes, in order: the text of a row, or why there is none."""
    for index, source in enumerate(job.files):
        records = first_records(source, index)
        start, at_once = 0, max(job.count, 1)
        while records is not None and start < len(records.ledger.starts):
            stop = min(start + at_once, len(records.ledger.starts))
            batch = prepare(_lines(records, start, stop), job.config, job.tokenizer)
            yield from _outcomes(job, batch, range(start, stop))
            start, at_once = stop, min(2 * at_once, max(job.count, _AT_ONCE))


def _lines(records: Records, start: int, stop: int) -> Records:
    """The records of some lines."""
    return records.part(range(*np.searchsorted(records.line, [start, stop]).tolist()))


def _outcomes(job: _Job, batch: Batch, lines: range) -> Iterator[Text | _LeftOut]:
    """What each of these lines of a block becomes."""
    plan = layout(job.config)
    if plan.packing != "none":
        names = {column: name for column, name in plan.names.items() if column in batch.schema}
        plan = dataclasses.replace(plan, packing="none", position_ids="none", names=names)
    schema = plan.columns(tuple(batch.schema.values()))
    columns, _ = next(plan.rows([(batch.columns, None)], schema))
    screen, path = job.screen, batch.origin.source.path
    look = Look(schema, job.tokenizer, job.config.canonical(), path, screen.marks, screen.width)
    rows = {line: row for row, line in enumerate(batch.line.tolist())}
    for line in lines:
        place = f"{path}, {'record' if is_json_file(path) else 'line'} {line + 1:,}"
        status = int(batch.ledger.status[line])
        if status == ALIVE:
            row = rows[line]
            values = {name: column[row] for name, column in columns.items()}
            yield render_row(look, values, [place, f"domain {batch.domain[row]}"], _counted(batch, row))
        elif (left_out := _left_out(job, batch.ledger, line, place)) is not None:
            yield left_out


def _left_out(job: _Job, ledger: Ledger, line: int, place: str) -> _LeftOut | None:
    """Why a line is no row; None: it is blank."""
    kind, reason = ledger.outcomes[int(ledger.status[line]) - 1]
    if kind == "blank":
        return None
    why = _DROPPED.get(reason, "") if kind == "dropped" else ledger.messages[line]
    if kind == "dropped":
        step, plan = job.config.preprocessing, layout(job.config)
        packed = plan.cuts and plan.capacity < step.max_seq_len
        limit, tokens = ("max_packed_len", plan.capacity) if packed else ("max_seq_len", step.max_seq_len)
        why = why.format(**step.model_dump(), limit=limit, tokens=tokens)
    text = ledger.text(line, _TEXT + 1)
    return _LeftOut(place, kind, reason, why, text if len(text) <= _TEXT else f"{text[:_TEXT]} ...")


def _counted(batch: Batch, row: int) -> list[str]:
    """What a run would count of a kept row: `truncated_tokens: 12`."""
    return [f"{name}: {counts[row]:,}" for name, counts in batch.counters.items() if counts[row]]
