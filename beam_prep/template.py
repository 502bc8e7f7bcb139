"""`beam-prep template TOKENIZER`: what a chat template does with the conversations of `chat.conversations`.

The conversations go through the chain of a run, and are shown like the rows of `inspect` before a run.
"""

import dataclasses
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

from rich.text import Text

from beam_prep.chat.chat_format import template_of
from beam_prep.chat.conversations import CONVERSATIONS, Outcome, outcome_of
from beam_prep.config import PipelineConfig
from beam_prep.config.loading import with_template
from beam_prep.errors import TokenizerError
from beam_prep.inspect.left_out import LeftOut
from beam_prep.inspect.page import Head, check_page, write_page
from beam_prep.inspect.rows import ShownRow, row_parts
from beam_prep.inspect.screen import Screen, legend
from beam_prep.inspect.sequences import counts_of
from beam_prep.inspect.show import text_of
from beam_prep.preview import SampleRows
from beam_prep.sample import sample_of
from beam_prep.storage.tokenizers import load_tokenizer
from beam_prep.testing import records
from beam_prep.tokens.tokenizer import Tokenizer

_WIDTH = 100  # of a line of the summary
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
    entry: ShownRow | LeftOut


def template(
    tokenizer_path: str | os.PathLike[str],
    chat_template: str | None = None,
    *,
    html: str | os.PathLike[str] | None = None,
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
        pager: in a terminal, send the text to `$PAGER`, or to `less -R`.

    Raises:
        TokenizerError: the tokenizer or the template cannot be used, or there is no such template.
        ConfigError: the template's file cannot be read.
        BeamPrepError: the page cannot be written.
    """
    if html is not None:
        check_page(html)
    tokenizer, screen, path = load_tokenizer(tokenizer_path), Screen(pager), os.fspath(tokenizer_path)
    sources = _sources(path, tokenizer, chat_template)
    shown = {name: cases_of(source, tokenizer, name) for name, source in sources.items()}
    texts = {name: _summary(f"{path}{f', template {name!r}' if name else ''}", cases) for name, cases in shown.items()}
    if as_json:
        found = [{"name": name, "conversations": [*map(_as_json, cases)]} for name, cases in shown.items()]
        print(json.dumps({"tokenizer": path, "templates": found}, ensure_ascii=False))
    elif html is None:
        screen.show(text for name, cases in shown.items() for text in _texts(texts[name], cases, screen))
    else:
        every = [case for cases in shown.values() for case in cases]
        numbers = [(kind, kind, count, "") for kind, count in _counts(every).items()]
        lines = [line for text in texts.values() for line in text.plain.split("\n")]
        head = Head(path, "what its chat template does with each conversation", numbers, lines)
        written = write_page(html, (case.entry for case in every), lambda: head)
        print(f"{html}: {written:,} conversations; open it in a browser")


def _sources(path: str, tokenizer: Tokenizer, given: str | None) -> Mapping[str, str | None]:
    """Name ("" for the tokenizer's only template) -> template, as a value of `input.chat_template`."""
    named = tokenizer.chat_templates
    if given is not None:
        return {os.path.basename(given): named.get(given, given)}
    if not named and tokenizer.chat_template is None:
        raise TokenizerError(f"{path} has no chat template; give one: --chat_template FILE.jinja")
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
    given = {"sections": [section], "not_rendered": "keep", "date": date.today().isoformat(), "chat_template": source}
    steps = {"max_seq_len": 1 << 20, "rows_without_loss": "keep"}
    settings = {"input": given, "mask": {"assistant": "train"}, "preprocessing": steps}
    config = PipelineConfig.from_dict(with_template(settings, ""))
    chat = template_of(tokenizer, config.input.chat_template, config.input.date)
    found = SampleRows(sample_of([records(CONVERSATIONS.values())], config, tokenizer, [])).outcomes()
    cases = []
    for (case, record), entry in zip(CONVERSATIONS.items(), found, strict=True):
        outcome, title = outcome_of(chat, record), [name, case] if name else [case]
        if isinstance(entry, LeftOut):
            if outcome.kind != "raises":
                outcome = outcome._replace(kind="refused", reason=entry.reason, message=entry.message)
            cases.append(Case(case, outcome, dataclasses.replace(entry, place=" · ".join(title))))
            continue
        notes = [f"not written: {', '.join(outcome.lost)}"] if outcome.lost else []
        notes += ["a run rejects the record"] if outcome.reason else []
        cases.append(Case(case, outcome, dataclasses.replace(entry[0], title=title, notes=notes, domain=name)))
    return cases


def _counts(cases: Sequence[Case]) -> dict[str, int]:
    """Number of conversations of each kind."""
    counts = Counter(case.outcome.kind for case in cases)
    return {kind: counts[kind] for kind in _KINDS}


def _summary(heading: str, cases: Sequence[Case]) -> Text:
    """A heading, and a line for each conversation."""
    lines = [Text(f"{heading}: {', '.join(f'{count} {kind}' for kind, count in _counts(cases).items())}", "bold")]
    size = max(map(len, CONVERSATIONS))
    for name, outcome, entry in cases:
        line = Text.assemble(f"  {name:{size}}  ", (f"{outcome.kind:11}", _KINDS[outcome.kind]), "  ")
        if isinstance(entry, LeftOut):
            line.append(" ".join(outcome.message.removeprefix("the chat template raised: ").split()))
            line.truncate(_WIDTH, overflow="ellipsis")
        else:
            line.append(counts_of(row_parts(entry.display, entry.row).sequences))
            line.append(f"; not written: {', '.join(outcome.lost_kinds)}" if outcome.lost else "")
        lines.append(line)
    return Text("\n").join(lines)


def _texts(summary: Text, cases: Sequence[Case], screen: Screen) -> Iterator[Text]:
    """For a terminal: the summary, then each conversation in colours."""
    yield Text("\n").join([summary, legend(screen.marks)])
    yield from (text_of(case.entry, screen) for case in cases)


def _as_json(case: Case) -> dict[str, Any]:
    """The outcome of a conversation, with the text of its row and the trained parts."""
    (name, (kind, reason, message, _), entry), lost = case, case.outcome.lost
    found = {"name": name, "outcome": kind, "reason": reason, "message": message, "not_written": lost}
    if isinstance(entry, LeftOut):
        return found
    (sequence,) = row_parts(entry.display, entry.row).sequences
    assert sequence.trained is not None
    assert entry.display.tokenizer is not None
    pieces, trained = entry.display.tokenizer.pieces(sequence.ids.tolist()), sequence.trained.tolist()
    runs = itertools.groupby(zip(trained, pieces, strict=True), lambda token: bool(token[0]))
    texts = ["".join(piece for _, piece in run) for is_trained, run in runs if is_trained]
    counts = {"tokens": len(pieces), "trained_tokens": sum(map(int, trained))}
    return {**found, **counts, "text": "".join(pieces), "trained": texts}
