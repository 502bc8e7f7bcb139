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
from dataclasses import dataclass, field
from typing import Any, Literal

from beam_prep.data.block import Reject
from beam_prep.data.schema import Output
from beam_prep.reading.records import Record, are_bare

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
    search = _Search(files_in(record))
    made = record
    for name, is_document in _fields(tuple(outputs)):
        value = record.get(name)
        if search.beside or not (is_document or _has_no_file(value)):
            search.base64 = not is_document
            if (cleaned := search.value(value, name)) is not value:
                made = {**made, name: cleaned}
    if search.found and rule == "reject":
        raise Reject("not_text", f"{search.found[0]}: {_ADVICE}")
    for where in search.emptied:
        message = f"'{where}' has no text beside its files, so there is nothing to keep: leave such records out"
        raise Reject("not_text", message)
    return made, len(search.found)


def _has_no_file(value: Any) -> bool:
    """True for messages that can hold no file: the most frequent value."""
    return type(value) is list and are_bare(value) and not any(";base64," in each["content"] for each in value)


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
    """Takes files out of the fields of a record. What holds none stays the same object.

    Attributes:
        beside: fields of the record that hold files.
        base64: True: data URLs count as files.
        found: says of each file where it is.
        emptied: the places of texts and messages that said nothing but files.
    """

    beside: list[str]
    base64: bool = True
    found: list[str] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)

    def value(self, value: Any, where: str) -> Any:
        """A field without files: a text, messages, or a list of these."""
        if isinstance(value, str):
            text = self._text(value, where, self.beside)
            if text is not value and not text.strip():
                self.emptied.append(where)
            return text
        if not isinstance(value, list):
            return value
        made = [
            (self._message if type(item) is dict else self.value)(item, f"{where}[{place}]")
            for place, item in enumerate(value)
        ]
        return value if _same(made, value) else made

    def _message(self, message: dict[str, Any], where: str) -> dict[str, Any]:
        before, own = len(self.found), files_in(message)
        self.found += [f"'{where}.{name}' holds a file" for name in own]
        content = given = message.get("content")
        if isinstance(given, str):
            content = self._text(given, where, self.beside or own)
        elif isinstance(given, list) and any(part is not None for part in given):  # nulls alone are rejected later
            parts = [*self._parts(given, where, self.beside or own)]
            content = given if _same(parts, given) else parts
        if not own and content is given:
            return message
        made = {name: value for name, value in message.items() if name not in own}
        if "content" in made:
            made["content"] = content
        if len(self.found) > before and not _says(made):
            self.emptied.append(where)
        return made

    def _parts(self, parts: list[Any], where: str, beside: list[str]) -> Iterator[Any]:
        for place, part in enumerate(parts):
            at = f"{where}.content[{place}]"
            if isinstance(part, str):
                yield self._text(part, at, beside)
            elif part is None:
                continue
            elif not isinstance(part, dict):
                yield part
            elif _is_file_part(part):
                of = f" (type {str(part['type'])[:40]!r})" if part.get("type") is not None else ""
                self.found.append(f"'{at}' is a file{of}")
            elif isinstance(part.get("text"), str):
                text = self._text(part["text"], at, beside)
                if part.get("type") in _OTHER_TEXTS and not files_in(part):
                    yield {"type": "text", "text": text}
                else:
                    yield part if text is part["text"] else {**part, "text": text}
            else:
                yield part

    def _text(self, text: str, where: str, beside: list[str]) -> str:
        if self.base64 and ";base64," in text and (urls := [*_DATA_URL.finditer(text)]):
            self.found += [f"'{where}' holds a file as base64 ({url[0][:60]} ...)" for url in urls]
            text = _DATA_URL.sub("", text)
        if beside and ("<" in text or "[" in text) and (places := _PLACEHOLDER.findall(text)):
            said = f"which stands for a file of the field {beside[0]!r}"
            self.found += [f"'{where}' has {place!r}, {said}" for place in places]
            text = _PLACEHOLDER.sub("", text).strip()
        return text


def _same(made: Sequence[Any], given: Sequence[Any]) -> bool:
    return len(made) == len(given) and all(map(operator.is_, made, given))


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
