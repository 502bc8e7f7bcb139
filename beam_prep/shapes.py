"""The shapes of records with a known config, and the search for the shape of given records."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beam_prep.data.block import Reject
from beam_prep.reading.adapters import message_list

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of records. All records that fit one config have equal shapes.

    Attributes:
        kind: one of `_SAYS`: the shapes in docs/which_config.md.
        fields: the fields of the shape, in the order of its kind.
        detail: the kind of values in the fields, "text", "messages" or "sharegpt"; "grouped" for rollouts with lists of
            responses.
    """

    kind: str
    fields: tuple[str, ...]
    detail: str = ""

    def __str__(self) -> str:
        names = " and ".join(map(repr, self.fields))
        return _SAYS[self.kind].format(names=names, detail=_DETAILS.get(self.detail, self.detail))


_DETAILS = {"text": "texts", "messages": "messages", "sharegpt": "items of from and value", "grouped": "lists"}
_SAYS = {
    "rollouts": "ids of prompts and sampled responses in {names}",
    "prompts": "ids of prompts in {names}",
    "tokenized": "ids in {names}: tokenised already",
    "preference": "preference pairs in {names}, {detail}",
    "unpaired": "answers that are good or bad (unpaired preference) in {names}, {detail}",
    "sampled": "a prompt ({detail}) and sampled responses in {names}",
    "messages": "conversations in {names}: messages of role and content",
    "sharegpt": "conversations in {names}: items of from and value (ShareGPT)",
    "completion": "messages of a prompt and of what follows it in {names}",
    "pair": "a question and its answer in {names}, texts",
    "text": "texts in {names}",
}

_PAIRS = (
    ("instruction", "output"), ("prompt", "completion"), ("prompt", "response"), ("instruction", "response"),
    ("question", "answer"), ("query", "response"), ("question", "response"), ("problem", "solution"),
    ("prompt", "answer"), ("query", "answer"), ("query", "answers"),
    ("input", "output"), ("source", "target"), ("inputs", "targets"),
)  # fmt: skip
"""(question, answer), more specific names first."""

_PROMPTS = ("prompt", "question", "instruction", "query", "problem", "input", "inputs")
_TEXTS = ("text", "content", "body", "document", "article", "code", "raw_content")
_CHATS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns")
_RESPONSES = ("responses", "completions", "samples", "generations")
_LONG_TEXT = 100  # a field with an unknown name may be the text if it has so many characters


def shapes_of(record: Record) -> Iterator[Shape]:
    """The shapes that fit a record, the most specific first.

    >>> [str(shape) for shape in shapes_of({"prompt": "1 + 1 =", "completion": " 2", "text": "1 + 1 = 2"})]
    ["a question and its answer in 'prompt' and 'completion', texts", "texts in 'text'"]
    """
    if _is_list_of(int, record.get("prompt_ids")):
        responses = record.get("response_ids")
        if isinstance(responses, list):
            grouped = any(isinstance(each, list) for each in responses)
            yield Shape("rollouts", ("prompt_ids", "response_ids"), "grouped" if grouped else "")
        else:
            yield Shape("prompts", ("prompt_ids",))
    if _is_list_of(int, record.get("input_ids")):
        yield Shape("tokenized", ("input_ids",))
    kinds = {_kind_of_side(record.get(name)) for name in ("chosen", "rejected")}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        yield Shape("preference", ("chosen", "rejected"), kind)
    kinds = {_kind(record.get(name)) for name in ("prompt", "completion")}
    if type(record.get("label")) is bool and kinds in ({"text"}, {"messages"}):
        yield Shape("unpaired", ("prompt", "completion", "label"), str(*kinds))
    for name in _RESPONSES:
        if _is_list_of(str, record.get(name)) and (kind := _kind(record.get("prompt"))) is not None:
            yield Shape("sampled", ("prompt", name), kind)
    kinds = {_kind(record.get("prompt")), _kind_of_side(record.get("completion"))}
    if "messages" in kinds and kinds <= {"messages", "text"}:
        yield Shape("completion", ("prompt", "completion"))
    sides = {"chosen", "rejected", "prompt", "completion"}
    names = [*_CHATS, *(name for name in record if name not in _CHATS and name not in sides)]
    for wanted in ("messages", "sharegpt"):
        for name in names:
            if _kind(record.get(name)) == wanted:
                yield Shape("messages" if wanted == "messages" else "sharegpt", (name,))
    for pair in _PAIRS:
        if all(isinstance(record.get(name), str) for name in pair):
            yield Shape("pair", pair)
            break
    yield from (Shape("text", (name,)) for name in _TEXTS if isinstance(record.get(name), str))


def _guesses(record: Record) -> Iterator[Shape]:
    """The shape of a record without a known shape: its only long text, under any name."""
    texts = ((name, value) for name, value in record.items() if name not in ("tools", "functions"))
    long = [name for name, value in texts if isinstance(value, str) and len(value) >= _LONG_TEXT]
    if len(long) == 1:
        yield Shape("text", (long[0],))


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is kind for each in value)


def _kind(value: Any) -> str | None:
    """The kind of a field's value: `text`, `messages`, `sharegpt`, or None."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return None
    if all(isinstance(item.get("role"), str) for item in value):
        return "messages"
    return "sharegpt" if all(isinstance(item.get("from"), str) for item in value) else None


def _kind_of_side(value: Any) -> str | None:
    """The kind of an answer, which may also be a single message."""
    return _kind([value] if isinstance(value, dict) else value)


def prompt_of_pairs(records: Sequence[Record]) -> tuple[str, str] | None:
    """(field of the prompt of preference pairs, kind of its value); None if most records have no such field."""
    for name in (*_PROMPTS, *_CHATS):
        kinds = Counter(_kind(value) for record in records if (value := record.get(name)))
        if kinds and (most := kinds.most_common(1)[0])[0] is not None and most[1] > len(records) / 2:
            return name, str(most[0])
    return None


@dataclass(frozen=True, slots=True)
class Found:
    """The shape of records.

    Attributes:
        shape: the chosen shape.
        records: the records that have it.
        looked_at: the number of records that were read.
        others: other shape -> number of records that have it and not the chosen shape.
        besides: other shape -> number of records that have it and the chosen shape.
    """

    shape: Shape
    records: Sequence[Record]
    looked_at: int
    others: Mapping[Shape, int]
    besides: Mapping[Shape, int]


def _with_lists(record: Record) -> Record:
    """The record with messages as lists, also if they are JSON in a text or an object of lists. A run reads them so."""
    lists = {}
    for name, value in record.items():
        try:
            found = message_list(value, name)
        except Reject:
            continue
        if _kind(found) is not None:
            lists[name] = found
    return {**record, **lists}


def find_shape(records: Sequence[Record]) -> Found | None:
    """The shape that is the most specific one of most records; None if no known shape fits any record."""
    known = [(record, list(shapes_of(record)) or list(_guesses(record))) for record in map(_with_lists, records)]
    first = Counter(shapes[0] for _, shapes in known if shapes)
    if not first:
        return None
    chosen = first.most_common(1)[0][0]
    fitting = [(record, shapes) for record, shapes in known if chosen in shapes]
    others = Counter(shapes[0] for _, shapes in known if shapes and chosen not in shapes)
    besides = Counter(shape for _, shapes in fitting for shape in shapes if shape != chosen)
    return Found(chosen, [record for record, _ in fitting], len(records), others, besides)
