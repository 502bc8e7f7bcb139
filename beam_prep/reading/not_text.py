"""Finds images, audio and video in records, so that no answer to them is trained without them.

A field holds files if its name says so, and its value is a file: a URL, a path with the extension of a file, base64,
bytes, or an object or list of these. The name is enough for `image`, `audio`, `video`. Parts of a content have types
(`image_url`). Texts may hold files as data URLs; and as placeholders (`<image>`), if a field beside them holds files.

A field of files in a message rejects the record. Beside texts without a placeholder, it only gives a warning, because
the texts alone may be wanted. In documents, which have no answers, base64 is part of the text.
"""

import functools
import operator
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from beam_prep.data.block import Reject
from beam_prep.data.schema import Output
from beam_prep.reading.records import Record

NotTextRule = Literal["reject", "drop_parts"]

DROPPED = "not_text_dropped"
"""The counter of parts that `drop_parts` removed from kept records."""

_NAMES = (
    r"image|img|picture|photo|pixel(?=_values)|audio|sound|speech|wav|video|clip|frame|media|multi_?modal|mm(?=_)|"
    r"attachment"
)
_FIELD = re.compile(
    rf"(?:\w+_)?(?:{_NAMES})s?(?:_?(?:url|uri|path|file|filename|name|data|base64|b64|bytes|id|list|input|value)s?)?",
    re.I,
)
"""Names of fields that may hold files, or places of files."""
_CERTAIN = {*("image", "images", "audio", "audios", "video", "videos", "pixel_values")}
"""Names of fields, and types of parts, that always mean files."""
_PLACE = re.compile(
    r"(?:https?|ftp|file|s3|gs|hf)://\S+|data:[a-z]+/[\w.+-]+[;,][\s\S]*|[\w+/-]{100,}={0,2}|[^\n]{1,1000}\."
    r"(?:png|jpe?g|jfif|gif|webp|bmp|tiff?|heic|heif|avif|svg|ico|wav|mp3|flac|og[gav]|opus|m4[av]|aac|wma|aiff?|mp4|"
    r"mov|avi|mkv|webm|mpe?g|3gp|pdf|docx?|xlsx?|pptx?|txt|csv|zip|tar|gz|npy|npz|pt|pkl|bin|dcm|nii)",
    re.I,
)
"""A URL, a data URL, base64, or a path."""
_PLACES = {*("bytes", "binary", "path", "url", "uri", "base64", "file_id", "array")} | _CERTAIN
"""Keys of objects that are a file, or its place. `binary` stands for a table's bytes."""
_STORED = {"bytes", "path"}
"""The keys with which `datasets` stores a file, in a column of any name."""
_TYPE = re.compile(rf"(?:^|_)(?:{_NAMES}|pixel|file|document)s?(?:_|$)", re.I)
"""Types of parts."""
_PLACEHOLDER = re.compile(
    r"<\|?/?(?:start_of_|end_of_|begin_of_)?(?:image|img|picture|photo|audio|sound|speech|video|vision)s?"
    r"(?:here|[ _-]?(?:\d+|pad|token|placeholder|start|end|bos|eos|soft_token))?\|?[ ]?/?>|"
    r"\[(?:image|img|audio|video)\]",
    re.I,
)
_DATA_URL = re.compile(
    r"(!\[[^][]{0,300}\]\()?data:(?:image(?!/svg)|audio|video|application(?=/pdf))/[\w.+-]+(?:;[\w=.-]+)*;base64,"
    r"[\w+/=%-]{40,}+(?!\.\.)(?(1)\))",
    re.I,
)
"""A data URL, with Markdown's image syntax around it. Examples of data URLs in explanations are shorter than any image,
and shortened ones (`...`) do not count. SVG, fonts and JSON are texts, and code contains them."""
_OTHER_TEXTS = (None, "input_text", "output_text")
"""Types of parts that hold a text, like the type `text`: of Bedrock, and of OpenAI's Responses."""
_ADVICE = 'beam_prep is for text: leave such records out, or keep their text: "not_text": "drop_parts" in "input"'


def text_only(record: Record, outputs: Sequence[Output], rule: NotTextRule = "reject") -> tuple[Record, int]:
    """(the record without images, audio and video, number of removed files).

    >>> output = bp.Output("ids", "ids", (bp.Section("messages", "$role", "conversation"),))
    >>> parts = [{"type": "image", "url": "a.png"}, {"type": "text", "text": "What is this?"}]
    >>> found, count = text_only({"messages": [{"role": "user", "content": parts}]}, [output], "drop_parts")
    >>> found["messages"][0]["content"], count
    ([{'type': 'text', 'text': 'What is this?'}], 1)

    Args:
        record: the record. It is not changed.
        outputs: only fields that these outputs read are searched.
        rule: `drop_parts`: remove the files.

    Raises:
        Reject: `not_text`: there are files, and the rule is `reject`; or a message has no text beside them.
    """
    beside = files_in(record)
    made, dropped = record, 0
    for name, is_document in _fields(tuple(outputs)):
        value = record.get(name)
        search = _Search(rule, not is_document)
        cleaned = search.value(value, name, beside)
        if cleaned is not value:
            made, dropped = {**made, name: cleaned}, dropped + search.dropped
    return made, dropped


def fields_of_files(records: Sequence[Mapping[str, Any]], read: Collection[str]) -> list[str]:
    """A warning for each field of files that stands beside the texts of records, and is not read.

    >>> fields_of_files([{"images": ["a.png"], "prompt": "What is this?"}, {"prompt": "Hi"}], {"prompt"})[0][:61]
    "'images' holds files in 1 of 2 records looked at, and is not "

    Args:
        records: of the input.
        read: the fields that a config reads or keeps.
    """
    counts = Counter(name for record in records for name in files_in(record) if name not in read)
    return [
        f"{name!r} holds files in {count:,} of {len(records):,} record{'s' * (len(records) != 1)} looked at, and is "
        "not read: answers about them would be trained without them. beam_prep is for text: leave such records out, "
        "unless the texts alone are what you want"
        for name, count in counts.items()
    ]


@functools.lru_cache(maxsize=64)
def _fields(outputs: tuple[Output, ...]) -> tuple[tuple[str, bool], ...]:
    """(field, True if it is a document) of each field of texts or messages that the outputs read."""
    found: dict[str, bool] = {}
    for output in outputs:
        if output.kind != "value":
            is_document = output.kind == "ids" and all(
                section.action == "train" and not section.template for section in output.sections
            )
            for section in output.sections:
                found[section.field] = found.get(section.field, True) and is_document
    return tuple(found.items())


def files_in(holder: Mapping[str, Any]) -> list[str]:
    """The names of the fields of an object (a record, a message, a part) that hold files."""
    named = _names_of_files(tuple(holder))
    if not named and dict not in map(type, holder.values()):
        return []  # the frequent case, found fast
    return [
        name
        for name, value in holder.items()
        if (name in named and (_is_filled(value) if name.lower() in _CERTAIN else _is_file(value)))
        or (type(value) is dict and value.keys() == _STORED and _is_file(value))
    ]


@functools.lru_cache(maxsize=4096)
def _names_of_files(names: tuple[str, ...]) -> frozenset[str]:
    """Those of the names that fields of files may have."""
    return frozenset(name for name in names if _FIELD.fullmatch(name))


def _is_filled(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    # A table gives each row all keys: {"bytes": null, "path": null}.
    values = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(each is not None and each != "" for each in values)


def _is_file(value: Any, levels: int = 3) -> bool:
    """True if a value is a file or its place, or an object or list that holds one."""
    if isinstance(value, str):
        return _PLACE.fullmatch(value.strip()) is not None
    if not levels:
        return False
    if isinstance(value, dict):
        if any(value.get(name) not in (None, "", []) for name in _PLACES & value.keys()):
            return True
        value = [*value.values()]
    return isinstance(value, list) and any(_is_file(each, levels - 1) for each in value)


@dataclass(slots=True)
class _Search:
    """Searches a field for files. In its methods, `beside` names fields beside a text that hold files.

    Attributes:
        rule: see `text_only`.
        base64: True: data URLs count as files.
        dropped: number of removed files.
    """

    rule: NotTextRule
    base64: bool
    dropped: int = 0

    def value(self, value: Any, where: str, beside: list[str]) -> Any:
        """The value without files; the same object if there are none."""
        if isinstance(value, str):
            before = self.dropped
            text = self._text(value, where, beside)
            if self.dropped > before and not text.strip():
                raise _nothing_left(where)
            return text
        if not isinstance(value, list):
            return value
        made = [
            (self._message if type(item) is dict else self.value)(item, f"{where}[{place}]", beside)
            for place, item in enumerate(value)
        ]
        return value if _same(made, value) else made

    def _message(self, message: dict[str, Any], where: str, beside: list[str]) -> dict[str, Any]:
        given, before = message.get("content"), self.dropped
        own = files_in(message)
        for name in own:
            self._found(f"'{where}.{name}' holds a file")
        content = given
        if isinstance(given, str):
            content = self._text(given, where, beside or own)
        elif isinstance(given, list):
            parts = [*self._parts(given, where, beside or own)]
            content = given if _same(parts, given) else parts
        if self.dropped == before and content is given:
            return message
        made = {name: value for name, value in message.items() if name not in own}
        if "content" in made:
            made["content"] = content
        if self.dropped > before and not _says(made):
            raise _nothing_left(where)
        return made

    def _parts(self, parts: list[Any], where: str, beside: list[str]) -> Iterator[Any]:
        for place, part in enumerate(parts):
            at = f"{where}.content[{place}]"
            if isinstance(part, str):
                yield self._text(part, at, beside)
            elif not isinstance(part, dict):
                if part is not None or self.rule == "reject":
                    yield part
            elif _is_file_part(part):
                of = f" (type {str(part['type'])[:40]!r})" if part.get("type") is not None else ""
                self._found(f"'{at}' is a file{of}")
            elif isinstance(part.get("text"), str):
                text = self._text(part["text"], at, beside)
                if part.get("type") in _OTHER_TEXTS and not files_in(part):
                    yield {"type": "text", "text": text}
                else:
                    yield part if text is part["text"] else {**part, "text": text}
            else:
                yield part

    def _text(self, given: str, where: str, beside: list[str]) -> str:
        text, before = given, self.dropped
        if self.base64 and ";base64," in text:
            for found in _DATA_URL.finditer(text):
                self._found(f"'{where}' holds a file as base64 ({found[0][:60]} ...)")
            text = _DATA_URL.sub("", text) if self.dropped > before else text
        in_base64 = self.dropped
        if beside and ("<" in text or "[" in text):
            for found in _PLACEHOLDER.finditer(text):
                self._found(f"'{where}' has {found[0]!r}, which stands for a file of the field {beside[0]!r}")
            text = _PLACEHOLDER.sub("", text).strip() if self.dropped > in_base64 else text
        return text

    def _found(self, what: str) -> None:
        if self.rule == "reject":
            raise Reject("not_text", f"{what}: {_ADVICE}")
        self.dropped += 1


def _same(made: Sequence[Any], given: Sequence[Any]) -> bool:
    return len(made) == len(given) and all(map(operator.is_, made, given))


def _nothing_left(where: str) -> Reject:
    message = f"'{where}' has no text beside its files, so there is nothing to keep: leave such records out"
    return Reject("not_text", message)


def _is_file_part(part: Mapping[str, Any]) -> bool:
    """True for a file in a content; False: the part is text, or unknown."""
    kind, text = part.get("type"), part.get("text")
    if not isinstance(kind, str):
        return kind is None and text is None and bool(files_in(part))
    # A document may be a text.
    return _TYPE.search(kind) is not None and (not text or kind.lower() in _CERTAIN or bool(files_in(part)))


def _says(message: Mapping[str, Any]) -> bool:
    """True if a message has text, calls or reasoning."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    if any(isinstance(text, str) and text.strip() for text in texts):
        return True
    return any(
        message.get(name) for name in ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
    )
