"""`beam-prep template TOKENIZER`: what a chat template does with the conversations of `chat.conversations`.

They are records of a list, taken through the chain of a run, and drawn as `inspect` draws rows before a run.
"""

import dataclasses
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from rich.text import Text

from beam_prep.chat.chat_format import template_of
from beam_prep.chat.conversations import CONVERSATIONS, Outcome, outcome_of
from beam_prep.config import PipelineConfig
from beam_prep.config.pipeline_config import with_template
from beam_prep.errors import TokenizerError
from beam_prep.inspect.left_out import LeftOut, left_out_text
from beam_prep.inspect.page import Head, check_page, write_page
from beam_prep.inspect.picture import Screen, legend
from beam_prep.inspect.rows import ShownRow, row_parts
from beam_prep.inspect.selection import Selection
from beam_prep.inspect.sequences import TokenSequence, counts_of
from beam_prep.preview import Job, outcomes_of
from beam_prep.storage.tokenizers import load_tokenizer
from beam_prep.testing import records
from beam_prep.tokens.tokenizer import Tokenizer

_WIDTH = 100  # of a line of the summary
_KINDS = {"taken": "bold green", "not written": "bold yellow", "refused": "bold red", "raises": "bold red"}


def template(
    tokenizer_path: str | os.PathLike[str],
    chat_template: str | None = None,
    *,
    html: str | os.PathLike[str] | None = None,
    as_json: bool = False,
    pager: bool = False,
) -> None:
    """Prints whether a chat template takes each of the conversations, what it leaves out, and what is trained of it.

    Args:
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub.
        chat_template: the path of a template, or the name of one of the tokenizer's; None: the tokenizer's own, or all
            of them, if they have names.
        html: write a page for a browser to this file instead.
        as_json: print one line of JSON instead.
        pager: in a terminal, give the text to `$PAGER`, or to `less -R`.

    Raises:
        TokenizerError: the tokenizer or the template cannot be used, or there is no such template.
        ConfigError: the template's file cannot be read.
        BeamPrepError: the page cannot be written.
    """
    if html is not None:
        check_page(html)
    tokenizer, screen = load_tokenizer(tokenizer_path), Screen(pager)
    path = os.fspath(tokenizer_path)
    sources = _sources(path, tokenizer, chat_template)
    shown = [
        Shown.of(name, source, tokenizer, screen, html is not None, [name] if len(sources) > 1 else [])
        for name, source in sources.items()
    ]
    if as_json:
        print(json.dumps({"tokenizer": path, "templates": [each.as_json() for each in shown]}, ensure_ascii=False))
    elif html is None:
        screen.show(text for each in shown for text in each.texts(path, screen))
    else:
        lines = [line for each in shown for line in each.summary(path).plain.split("\n")]
        total = sum((each.counts for each in shown), Counter[str]())
        numbers = [(kind, kind, total[kind], "") for kind in _KINDS]
        head = Head(path, "what its chat template does with each conversation", numbers, lines)
        written = write_page(html, (entry for each in shown for entry in each.entries), lambda: head)
        print(f"{html}: {written:,} conversations; open it in a browser")


def _sources(path: str, tokenizer: Tokenizer, given: str | None) -> Mapping[str, str | None]:
    """Name ("" of one that has none) -> template, as `input.chat_template` has it."""
    named = tokenizer.chat_templates
    if given is not None:
        return {given: named.get(given, given)}
    if not named and tokenizer.chat_template is None:
        raise TokenizerError(f"{path} has no chat template; give one: --chat_template FILE.jinja")
    return named or {"": None}


def _config(source: str | None) -> PipelineConfig:
    """As of a usual run, but for records that are left out there, though there is something to see."""
    section = {"field": "messages", "action": "$role", "template": "conversation"}
    given = {"sections": [section], "not_rendered": "keep", "date": date.today().isoformat()}
    given |= {} if source is None else {"chat_template": source}
    steps = {"max_seq_len": 1 << 20, "rows_without_loss": "keep"}
    config = {"input": given, "mask": {"assistant": "train"}, "preprocessing": steps}
    return PipelineConfig.from_dict(with_template(config, ""))


@dataclass(frozen=True, slots=True)
class Shown:
    """What a template does with the conversations.

    Attributes:
        name: of the template; "" where it has none.
        outcomes: of each conversation.
        entries: each as a row, or why there is none.
    """

    name: str
    outcomes: Mapping[str, Outcome]
    entries: Sequence[ShownRow | LeftOut]

    @classmethod
    def of(
        cls,
        name: str,
        source: str | None,
        tokenizer: Tokenizer,
        screen: Screen,
        roles: bool = False,
        begin: Sequence[str] = (),
    ) -> "Shown":
        """Takes the conversations through the chain. `begin` is the beginning of each title."""
        config = _config(source)
        job = Job(config, "", tokenizer, (), Selection(), screen, False, roles)
        chat = template_of(tokenizer, config.input.chat_template, config.input.date)
        outcomes: dict[str, Outcome] = {}
        entries: list[ShownRow | LeftOut] = []
        rows = outcomes_of(job, records(CONVERSATIONS.values()))
        for (case, record), found in zip(CONVERSATIONS.items(), rows, strict=True):
            outcome, title = outcome_of(chat, record), [*begin, case]
            if isinstance(found, LeftOut):
                if outcome.kind != "raises":
                    outcome = outcome._replace(kind="refused", reason=found.reason, message=found.message)
                entries.append(dataclasses.replace(found, place=" · ".join(title)))
            else:
                notes = [f"not written: {', '.join(outcome.lost)}"] if outcome.lost else []
                notes += ["a run rejects the record"] if outcome.reason else []
                entries.append(dataclasses.replace(found[0], title=title, notes=notes, domain=name))
            outcomes[case] = outcome
        return cls(name, outcomes, entries)

    @property
    def counts(self) -> Counter[str]:
        """How many conversations are of each kind."""
        return Counter(outcome.kind for outcome in self.outcomes.values())

    def texts(self, path: str, screen: Screen) -> Iterator[Text]:
        """For a terminal: a line for each conversation, then each as it is drawn."""
        yield Text("\n").join([self.summary(path), legend(screen.marks)])
        for entry in self.entries:
            yield left_out_text(entry) if isinstance(entry, LeftOut) else entry.text(screen)

    def summary(self, path: str) -> Text:
        """A heading, and a line for each conversation."""
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in _KINDS)
        lines = [Text(f"{path}{f', template {self.name!r}' if self.name else ''}: {counts}", "bold")]
        size = max(map(len, CONVERSATIONS))
        for (case, outcome), entry in zip(self.outcomes.items(), self.entries, strict=True):
            line = Text.assemble(f"  {case:{size}}  ", (f"{outcome.kind:11}", _KINDS[outcome.kind]), "  ")
            if isinstance(entry, LeftOut):
                line.append(" ".join(outcome.message.removeprefix("the chat template raised: ").split()))
                line.truncate(_WIDTH, overflow="ellipsis")
            else:
                line.append(counts_of(_sequences(entry)))
                line.append(f"; not written: {', '.join(outcome.lost_kinds)}" if outcome.lost else "")
            lines.append(line)
        return Text("\n").join(lines)

    def as_json(self) -> dict[str, Any]:
        """As JSON data."""
        found = [
            {
                "name": case,
                "outcome": outcome.kind,
                "reason": outcome.reason,
                "message": outcome.message,
                "not_written": outcome.lost,
                **({} if isinstance(entry, LeftOut) else _said(entry)),
            }
            for (case, outcome), entry in zip(self.outcomes.items(), self.entries, strict=True)
        ]
        return {"name": self.name, "counts": {kind: self.counts[kind] for kind in _KINDS}, "conversations": found}


def _sequences(row: ShownRow) -> list[TokenSequence]:
    return row_parts(row.display, row.row).sequences


def _said(row: ShownRow) -> dict[str, Any]:
    """The text of a row, and the parts of it that are trained."""
    (sequence,) = _sequences(row)
    assert sequence.trained is not None
    assert row.display.tokenizer is not None
    ids, trained = sequence.ids.tolist(), sequence.trained.tolist()
    pieces = row.display.tokenizer.pieces(ids)
    runs = itertools.groupby(zip(trained, pieces, strict=True), lambda token: bool(token[0]))
    texts = ["".join(piece for _, piece in run) for is_trained, run in runs if is_trained]
    return {"text": "".join(pieces), "tokens": len(ids), "trained_tokens": sum(map(int, trained)), "trained": texts}
