"""`start`: writes a config for records, the reasons for it, and the commands to type next."""

import contextlib
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from beam_prep.audit.audit import Audit, audit_of
from beam_prep.config import PipelineConfig
from beam_prep.data.block import InputFile
from beam_prep.errors import InputError, OutputError
from beam_prep.inspect.row import VISIBLE
from beam_prep.reading.json_line import describe
from beam_prep.reading.not_text import fields_of_files
from beam_prep.reading.verdicts import verdicts
from beam_prep.sample.draw import Drawn, draw
from beam_prep.sample.sample import Sample
from beam_prep.starter.draft import Draft, draft, folders
from beam_prep.starter.shapes import Found, find_shape
from beam_prep.storage.files import list_inputs
from beam_prep.storage.inputs import advice_on
from beam_prep.storage.tokenizers import load_tokenizer
from beam_prep.tokens.tokenizer import Tokenizer

RECORDS = 500
"""How many records are read: a few hundred show shapes and lengths, though not rare faults."""

_CUT = 0.01
"""The proposed `max_seq_len` cuts off at most this share of the tokens."""
_SHORTEST, _LONGEST, _CHUNK = 512, 32_768, 2_048
"""The least and the most that is proposed as `max_seq_len`, and the length of a chunk."""
_CHARACTERS = 3
"""Characters a token, if no tokenizer is given. Less than usual in English, so rows are rather too long."""


def start(
    inputs: Sequence[str], path: str | os.PathLike[str], tokenizer_path: str | None = None, overwrite: bool = False
) -> list[str]:
    """Writes a config that fits the records, and the reasons for it beside it, with the ending `.md`.

    Args:
        inputs: paths and globs of JSONL files.
        path: the config to write.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub. With it, lengths are counted, the
            template is checked, and the config is tried.
        overwrite: replaces existing files.

    Returns:
        lines for the terminal: what was found, what was written, what to type next.

    Raises:
        InputError: there is no record, or no record of a known shape.
        OutputError: a file exists already.
        TokenizerError: there is no such tokenizer.
    """
    target = Path(path)
    reasons = target.with_suffix(".md")
    if target == reasons:
        raise OutputError(f"-o is {target}, and the reasons are written there: give a name that ends in .json")
    for file in (target, reasons):
        if file.exists() and not overwrite:
            raise OutputError(f"{file} is there already: pass --overwrite to replace it, or choose another -o")
    files = list_inputs(list(inputs))
    if {str(file.resolve()) for file in (target, reasons)} & {
        os.path.realpath(file.place or file.path) for file in files
    }:
        raise OutputError(f"-o is {target}, and that is an input: choose another -o")
    drawn = draw(files, RECORDS)
    records = [record for block in drawn.blocks for record in block.rows]
    found = find_shape(records)
    if found is None:
        problem = _unknown(files, drawn, records)
        raise InputError(advice_on(files, problem, ()) or problem)
    tokenizer = None if tokenizer_path is None else load_tokenizer(tokenizer_path)
    made = draft(found, tokenizer)
    _set_length(made, found, drawn, tokenizer, files)
    config = PipelineConfig.from_dict(made.config, str(target))
    tried = None if tokenizer is None else audit_of(drawn, files, config, tokenizer)
    use = config.field_use
    made.open += [str(each) for each in verdicts(found.records, use)]
    made.open += fields_of_files(found.records, use.known) if use.answers else []
    made.open += folders(found.records)
    name = tokenizer_path or "TOKENIZER"
    started = _Started(made, found, drawn, target, tried, _commands(inputs, target, name))
    _write(target, _json(_in_order(made.config)) + "\n", overwrite)
    _write(reasons, "\n".join(started.page()) + "\n", overwrite)
    # Texts of records must not control the terminal.
    return [line.translate(VISIBLE) for line in started.told(reasons)]


def _set_length(
    made: Draft, found: Found, drawn: Drawn, tokenizer: Tokenizer | None, files: Sequence[InputFile]
) -> None:
    """Sets `max_seq_len` by the lengths of the sample."""
    step = made.config.get("preprocessing", {})
    if step.get("truncation_mode") == "chunk":
        made.set("preprocessing", "max_seq_len", _CHUNK, "tokens of a row: set it to what your model is trained with")
        return
    if tokenizer is None:
        sizes = np.array([len(json.dumps(record, ensure_ascii=False)) // _CHARACTERS for record in found.records])
        how = "estimated by characters, as no tokenizer was given"
    else:
        unlimited = {**made.config, "preprocessing": {**step, "max_seq_len": 1 << 22}}
        sample = Sample.of(drawn, PipelineConfig.from_dict(unlimited), tokenizer, files)
        lengths = [rows.lengths for _, _, rows, _, _ in sample.sequences()]
        sizes = np.concatenate([np.zeros(0, np.int64), *lengths])
        how = "counted with the tokenizer"
    longest, length = int(sizes.max(initial=0)), _SHORTEST
    while length < _LONGEST and np.maximum(sizes - length, 0).sum() > _CUT * sizes.sum():
        length *= 2
    cut = np.maximum(sizes - length, 0).sum() / max(1, sizes.sum())
    why = f"the longest row of the sample has {longest:,} tokens ({how}); at {length:,}, {cut:.1%} of all are cut off"
    made.set("preprocessing", "max_seq_len", length, why)


def _unknown(files: Sequence[InputFile], drawn: Drawn, records: Sequence[Any]) -> str:
    if not records:
        outcomes = [reason for block in drawn.blocks for kind, reason in block.ledger.outcomes if kind == "rejected"]
        why = f": its lines are rejected as {outcomes[0]}" if outcomes else ""
        return f"{files[0].path} has no record that can be read{why}; wanted one JSON object on each line"
    names = {name: _described(value) for record in records for name, value in record.items()}
    told = ", ".join(f"{name!r} ({kind})" for name, kind in list(names.items())[:12])
    return (
        f"no known shape fits the records of {files[0].path}; their fields: {told or 'none'}. Convert them to a shape "
        "of docs/which_config.md, for instance 'messages' of 'role' and 'content': the page has a script under "
        '"Records of another shape"'
    )


def _described(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"a list of objects with {', '.join(map(repr, list(value[0])[:8]))}"
    return describe(value)


def _commands(inputs: Sequence[str], target: Path, tokenizer: str) -> list[str]:
    with_config = f"-c {shlex.quote(str(target))} --tokenizer_path {shlex.quote(tokenizer)}"
    given = " ".join(map(shlex.quote, inputs))
    return [
        f"beam-prep audit {given} {with_config}",
        f"beam-prep inspect {given} {with_config}",
        f"beam-prep run {given} -o out {with_config}",
    ]


@dataclass(frozen=True, slots=True)
class _Started:
    """A config that was written, with its report."""

    made: Draft
    found: Found
    drawn: Drawn
    target: Path
    tried: Audit | None
    commands: Sequence[str]

    def told(self, reasons: Path) -> list[str]:
        """The lines for the terminal, without the reasons."""
        lines = [self.drawn.looked_at, f"chosen: {self.found.shape} ({len(self.found.records):,} records)"]
        lines += [f"to decide: {text}" for text in self.made.open]
        wrote = f"wrote {self.target}, and why it is so: {reasons}"
        return [*lines, *self._tried(), wrote, "next:", *(f"  {line}" for line in self.commands)]

    def page(self) -> list[str]:
        """The lines of the file of reasons, in Markdown."""
        chosen = f"Chosen: {self.found.shape} ({len(self.found.records):,} records)."
        lines = [f"# Why {self.target.name} is so", "", f"{self.drawn.looked_at}. {chosen}", ""]
        lines += ["| field | why |", "|---|---|", *(f"| `{place}` | {_cell(why)} |" for place, why in self.made.why)]
        if self.made.open:
            lines += ["", "To decide:", "", *(f"* {text}" for text in self.made.open)]
        if self.tried is not None:
            lines += ["", "```text", *self._tried(), "```"]
        return [*lines, "", "What to type:", "", "```", *self.commands, "```"]

    def _tried(self) -> Iterator[str]:
        if self.tried is None:
            return
        rows, tokens, trained = self.tried.sample.kept
        share = f", {trained / tokens:.0%} of the tokens trained" if tokens and trained else ""
        yield f"tried on {self.tried.sample.count:,} records: {rows:,} kept{share}"
        if self.tried.sample.failure is not None:
            yield f"  a run would fail: {self.tried.sample.failure}"
        for finding in self.tried.findings:
            if finding.name == "bad_answers":
                continue  # it is one of the open questions, with or without a tokenizer
            yield f"  {finding.name}: {' '.join(finding.says.split())}"
            if finding.example is not None and finding.name.startswith("rejected"):
                yield f"    {finding.example.text}"
            yield f"    mend: {finding.mend}"


_PARTS = ("input", "mask", "preprocessing", "output")
_WIDTH = 100


def _in_order(config: dict[str, Any]) -> dict[str, Any]:
    return {part: config[part] for part in _PARTS if part in config}


def _json(value: Any, indent: str = "") -> str:
    """JSON in which a value that fits one line is on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or (indent and len(indent) + len(line) <= _WIDTH):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(name, ensure_ascii=False)}: {_json(each, inner)}" for name, each in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _json(each, inner) for each in value) + f"\n{indent}]"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _write(path: Path, text: str, overwrite: bool) -> None:
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(open(path, "w" if overwrite else "x", encoding="utf-8"))
        except FileExistsError:
            raise OutputError(f"{path} is there already: pass --overwrite to replace it") from None
        stream.write(text)
