"""Checks of the chat template: what it does not write, what it writes besides, where its spans cannot be proven."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import nodes

from beam_prep.audit.finding import Finding, Hits
from beam_prep.audit.sample import Conversation, Part, Sample, text_of
from beam_prep.core.chat.compilation import compile_template
from beam_prep.core.chat.message import REASONING_FIELDS
from beam_prep.core.data.block import Reject
from beam_prep.core.reading.adapters import tools as schemas_of

_SOME = 0.01
"""Of the messages of a role: templates drop a few (an empty system message), and it is no finding."""


def spans_unproven(sample: Sample) -> Iterator[Finding]:
    """Records that are rejected because it is not certain where a trained message begins and ends."""
    hits = Hits(sample)
    for _, reason, part, line in sample.left_out():
        if reason == "spans_unproven":
            hits.add(part, line, _unproven(sample, part, line))
    if not hits.count:
        return
    says = f"where a trained message begins and ends is not certain in {hits.told}: rejected"
    lines = template_lines(sample.template_source, sample.config.input.date)
    if lines:
        says += "; lines of the template that change, repeat or look at what messages say: "
        says += "; ".join(f"{number}: {text}" for number, text in lines[:_LINES])
        says += f"; and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
    mend = (
        '"input": {"chat_template": ...}: a template that writes header, content and end token, message after message, '
        "or that has {% generation %} around what the assistant says"
    )
    yield from hits.finding("spans_unproven", says, mend)


_LINES, _LINE = 4, 100


def _unproven(sample: Sample, part: Part, line: int) -> str:
    """The roles of a record's messages whose spans are not proven."""
    if part.rendered is None:
        return ""
    row = part.rendered.line.tolist().index(line)
    found: dict[str, None] = {}
    for pieces in part.rendered.pieces.values():
        first, last = (int(pieces.borders[pieces.sequences[pieces.rows[at]]]) for at in (row, row + 1))
        for segment in pieces.segments[first:last]:
            if not segment["proven"] and segment["role"] >= 0:
                found[f"messages[{segment['turn']}] ({pieces.roles[segment['role']]})"] = None
    return f"not proven: {', '.join(list(found)[:4])}" if found else ""


_HARMLESS = {"trim", "string", "default", "d", "length", "count", "tojson"}
"""Filters through which a message's text is followed, or that do not write it."""
_HARMLESS_METHODS = {"strip", "lstrip", "rstrip", "get", "items", "startswith", "endswith", "append"}


def template_lines(source: str, date: str | None) -> list[tuple[int, str]]:
    """(number, line) of the template's lines that do something to what messages say, beyond writing it.

    First those that change it (filters, methods, slices), then those that read another message's text by its place,
    then, if there are none, all that read a text.
    """
    tree = compile_template(source, date).tree
    texts = source.splitlines()
    changing, looking, reading = dict[int, None](), dict[int, None](), dict[int, None]()
    for node in tree.find_all(nodes.Expr):
        if node.lineno is None or not 0 < node.lineno <= len(texts):
            continue
        if isinstance(node, nodes.Filter):
            if node.node is not None and node.name not in _HARMLESS and not node.name.startswith("_beam_prep"):
                changing |= {node.lineno: None} if _reads_text(node.node) else {}
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            if node.node.attr not in _HARMLESS_METHODS and _reads_text(node.node.node):
                changing[node.lineno] = None
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            changing |= {node.lineno: None} if _reads_text(node.node) else {}
        elif _is_text(node):
            reading[node.lineno] = None
            if isinstance(node, nodes.Getattr | nodes.Getitem) and _by_place(node.node):
                looking[node.lineno] = None
    found = changing or looking or reading
    return [(number, _cut(texts[number - 1])) for number in sorted(found)]


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LINE else f"{text[:_LINE]} ..."


def _is_text(node: nodes.Node) -> bool:
    """`m.content`, `m['content']`, or a variable that is called so."""
    if isinstance(node, nodes.Name):
        return node.name in ("content", "text")
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


def _reads_text(node: nodes.Node) -> bool:
    return _is_text(node) or any(map(_is_text, node.find_all(nodes.Expr)))


def _by_place(node: nodes.Node) -> bool:
    """`messages[...]`, or the neighbours that `loop` gives."""
    if isinstance(node, nodes.Getitem):
        return isinstance(node.node, nodes.Name) and "message" in node.node.name
    return isinstance(node, nodes.Getattr) and node.attr in ("previtem", "nextitem")


def asks_for_date(source: str) -> bool:
    """True if a template calls `strftime_now`, without which it does not say which day it is.

    >>> asks_for_date("{{ strftime_now('%Y') }}"), asks_for_date("{# strftime_now #}")
    (True, False)
    """
    if "strftime_now" not in source:
        return False
    tree = compile_template(source, "2026-01-01").tree
    return any(name.name == "strftime_now" and name.ctx == "load" for name in tree.find_all(nodes.Name))


_DATE = re.compile(
    r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{4}\b|"
    r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December) \d{1,2}, \d{4}\b"
)


def prints_date(sample: Sample) -> Iterator[Finding]:
    """A date in the rendering that is not in the record, and that the config does not set."""
    if sample.template is None or sample.config.input.date is not None:
        return
    hits, dates = Hits(sample, "rows"), dict[str, None]()
    for chat, text in _rendered(sample):
        if not (found := _DATE.findall(text)):
            continue
        told = chat.part.records.ledger
        raw = told.raw[told.starts[chat.line] : told.ends[chat.line]].decode("utf-8", "replace")
        own = [date for date in found if date not in raw]
        if own:
            hits.add(chat.part, chat.line, f"the template writes {own[0]!r}", len(own[0]) * sample.tokens_per_character)
            dates[own[0]] = None
    says = f"the chat template writes a date of its own into {hits.told}: {', '.join(list(dates)[:3])}"
    mend = '"input": {"chat_template": ...} without the date; or the records\' "chat_template_kwargs", if it reads them'
    yield from hits.finding("date_in_template", says, mend)


def tools_not_written(sample: Sample) -> Iterator[Finding]:
    """Records with `tools` of which the rendering says nothing."""
    hits = Hits(sample)
    for chat, text in _rendered(sample):
        record = _record(chat)
        names = [name for tool in _schemas(record) if (name := _name(tool))]
        if names and not any(name in text for name in names):
            size = len(json.dumps(record["tools"], ensure_ascii=False)) * sample.tokens_per_character
            hits.add(chat.part, chat.line, f"tools: {', '.join(names)}", size)
    says = f"the rendering names none of the tools of {hits.told}"
    mend = '"input": {"chat_template": ...} that writes `tools` (configs/tools.jinja does), "template": "conversation"'
    yield from hits.finding("tools_not_written", says, mend)


def calls_not_written(sample: Sample) -> Iterator[Finding]:
    """Messages with `tool_calls` of which the rendering says nothing."""
    hits = Hits(sample, "messages")
    for chat, text in _rendered(sample):
        for place, message in enumerate(chat.messages):
            calls = message.get("tool_calls")
            names = [name for call in calls if (name := _name(call))] if isinstance(calls, list) else []
            if names and not any(name in text for name in names):
                size = len(json.dumps(calls, ensure_ascii=False)) * sample.tokens_per_character
                hits.add(chat.part, chat.line, f"{chat.field}[{place}] calls {', '.join(names)}", size)
    says = f"the rendering does not hold the calls of tools in {hits.told}"
    mend = '"input": {"chat_template": ...} that writes `tool_calls` (configs/tools.jinja does)'
    yield from hits.finding("calls_not_written", says, mend)


def texts_not_written(sample: Sample) -> Iterator[Finding]:
    """Messages of a role, or their reasoning, that the template leaves out."""
    found: dict[str, Hits] = {}
    of_role: dict[str, int] = {}
    for chat, text in _rendered(sample):
        squeezed = _squeezed(text)
        last = len(chat.messages) - 1
        for place, message in enumerate(chat.messages):
            told = {str(message.get("role")): text_of(message)}
            if place == last:  # templates leave out the reasoning of earlier turns, as models were trained
                told[f"{message.get('role')}'s reasoning"] = _reasoning(message)
            for role, said in told.items():
                # The last line alone: templates take reasoning out of a content, or the white space around it.
                line = next((line for line in reversed(said.splitlines()) if line.strip()), "")
                if not line:
                    continue
                of_role[role] = of_role.get(role, 0) + 1
                if _squeezed(line) not in squeezed and _squeezed(json.dumps(line)[1:-1]) not in squeezed:
                    hits = found.setdefault(role, Hits(sample, "messages"))
                    size = len(said) * sample.tokens_per_character
                    hits.add(chat.part, chat.line, f"{chat.field}[{place}]: {said}", size)
    for role, hits in found.items():
        if hits.count <= _SOME * of_role[role]:
            continue
        says = f"the rendering does not hold {hits.count:,} of {of_role[role]:,} texts of {role!r}"
        yield from hits.finding("text_not_written", says, '"input": {"chat_template": ...} that writes them')


def _reasoning(message: Mapping[str, Any]) -> str:
    return next((text for key in REASONING_FIELDS if isinstance(text := message.get(key), str)), "")


def _rendered(sample: Sample) -> Iterator[tuple[Conversation, str]]:
    """Each conversation that became text, with all texts of its row."""
    places = [
        {} if part.rendered is None else {line: row for row, line in enumerate(part.rendered.line.tolist())}
        for part in sample.parts
    ]
    for chat in sample.conversations:
        row, rendered = places[chat.part.number].get(chat.line), chat.part.rendered
        if row is None or rendered is None:
            continue
        texts = []
        for pieces in rendered.pieces.values():
            first, last = (int(pieces.sequences[pieces.rows[at]]) for at in (row, row + 1))
            texts += [pieces.texts[at] for at in range(first, last)]
        yield chat, "\n".join(texts)


def _record(chat: Conversation) -> Mapping[str, Any]:
    rows = chat.part.read
    row = int(rows.line.searchsorted(chat.line))
    found: Mapping[str, Any] = rows.rows[row]
    return found


def _schemas(record: Mapping[str, Any]) -> list[Any]:
    try:
        return list(schemas_of(dict(record)) or ())
    except Reject:
        return []  # a reject, which is a finding of its own


def _name(tool: Any) -> str | None:
    """The name in a schema, or in a call, of OpenAI's shape or without its wrapper."""
    if not isinstance(tool, dict):
        return None
    inner = tool.get("function")
    name = inner.get("name") if isinstance(inner, dict) else tool.get("name")
    return name if isinstance(name, str) and name else None


def _squeezed(text: str) -> str:
    return "".join(text.split())


CHECKS = (spans_unproven, prints_date, tools_not_written, calls_not_written, texts_not_written)
