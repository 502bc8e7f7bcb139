"""Finds images, audio and video in records, so that no answer to them is trained without them.

A field holds files if its name says so, and its value is a file: a URL, a path with the extension of a file, base64,
bytes, or an object or list of these. The name is enough for `image`, `audio`, `video`, and if a placeholder (`<image>`)
stands for the field. Parts of a content have types (`image_url`). Texts may hold files as base64: text that decodes to
the first bytes of a file, or a data URL of a file.

A field of files in a message rejects the record. Beside texts without a placeholder, it only gives a warning, because
the texts alone may be wanted. In documents, which have no answers, base64 is part of the text.
"""

import base64
import functools
import operator
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from beam_prep.data.block import Reject
from beam_prep.data.schema import Output
from beam_prep.reading.records import Record

NotTextRule = Literal["reject", "drop_parts"]

DROPPED = "not_text_dropped"
"""The counter of parts that `drop_parts` removed from kept records."""

_IMAGE, _SOUND, _VIDEO, _FILE = "an image", "a sound", "a video", "a file"
_WORDS = {
    **dict.fromkeys(("image", "img", "picture", "photo", "vision", "pixel"), _IMAGE),
    **dict.fromkeys(("audio", "sound", "speech", "wav"), _SOUND),
    **dict.fromkeys(("video", "clip", "frame"), _VIDEO),
    **dict.fromkeys(("media", "multimodal", "multi_modal", "mm", "attachment"), _FILE),
    **dict.fromkeys(("file", "document", "application"), _FILE),  # `application`: in the data URL of a PDF
}
_NAMES = (
    r"image|img|picture|photo|pixel(?=_values)|audio|sound|speech|wav|video|clip|frame|media|multi_?modal|mm(?=_)|"
    r"attachment"
)
_FIELD = re.compile(
    rf"(?:\w+_)?({_NAMES})s?(?:_?(?:url|uri|path|file|filename|name|data|base64|b64|bytes|id|list|input|value)s?)?",
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
_TYPE = re.compile(rf"(?:^|_)({_NAMES}|pixel|file|document)s?(?:_|$)", re.I)
"""Types of parts."""
_PLACEHOLDER = re.compile(
    r"<\|?/?(?:start_of_|end_of_|begin_of_)?(image|img|picture|photo|audio|sound|speech|video|vision)s?"
    r"(?:here|[ _-]?(?:\d+|pad|token|placeholder|start|end|bos|eos|soft_token))?\|?[ ]?/?>|\[(image|img|audio|video)\]",
    re.I,
)
_DATA_URL = re.compile(
    r"(!\[[^][]{0,300}\]\()?data:(image(?!/svg)|audio|video|application(?=/pdf))/[\w.+-]+(?:;[\w=.-]+)*;base64,"
    r"[\w+/=%-]{40,}+(?!\.\.)(?(1)\))",
    re.I,
)
"""A data URL, with Markdown's image syntax around it. Examples of data URLs in explanations are shorter than any image,
and shortened ones (`...`) do not count. SVG, fonts and JSON are texts, and code contains them."""
_BASE64 = ";base64,"
_BEGINS = ("iVBORw0KGgo", "/9j/", "R0lGODlh", "R0lGODdh", "UklGR", "T2dnUw", "ZkxhQw", "SUQz", "JVBERi0")
"""Beginnings of files in base64: PNG, JPEG, GIF; WAV and WebP, Ogg, FLAC, MP3; PDF."""
_RAW = re.compile(rf"(?<![\w+/=])(?:{'|'.join(map(re.escape, _BEGINS))})[\w+/]{{100,}}+={{0,2}}(?!\.\.)", re.A)
"""A candidate for a file's base64 without `data:` before it: its first bytes decide."""
_FIRST_BYTES = {
    rb"\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF....WEBP": _IMAGE,
    rb"\xff\xd8\xff(?:[\xe0-\xef]..(?:JFIF|JFXX|Exif|http|Adobe|ICC_)|\xdb\x00[\x43\x84])": _IMAGE,
    rb"RIFF....WAVE|OggS\x00|fLaC\x00|ID3[\x02-\x04]": _SOUND,
    rb"RIFF....AVI ": _VIDEO,
    rb"%PDF-\d": _FILE,
}
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
    beside = _by_kind(record)
    made, dropped = record, 0
    for name, is_document in _fields(tuple(outputs)):
        value = record.get(name)
        if value is None or (not beside and _is_plain(value, is_document)):
            continue
        search = _Search(rule, beside, not is_document)
        cleaned = search.value(value, name)
        if cleaned is not value:
            made, dropped = {**made, name: cleaned}, dropped + search.dropped
    return made, dropped


def fields_of_files(records: Sequence[Mapping[str, Any]], read: Collection[str]) -> list[str]:
    """A warning for each field of files that stands beside the texts of records, and is not read.

    >>> fields_of_files([{"images": ["a.png"], "prompt": "What is this?"}, {"prompt": "Hi"}], {"prompt"})[0][:64]
    "'images' holds an image in 1 of 2 records looked at, and is not "

    Args:
        records: of the input.
        read: the fields that a config reads or keeps.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for record in records:
        counts.update((name, kind) for name, kind in _files(record) if name not in read)
    return [
        f"{name!r} holds {kind} in {count:,} of {len(records):,} record{'s' * (len(records) != 1)} looked at, and is "
        "not read: answers about it would be trained without it. beam_prep is for text: leave such records out, unless "
        "the texts alone are what you want"
        for (name, kind), count in counts.items()
    ]


def _is_plain(value: Any, is_document: bool) -> bool:
    """True if a field certainly has only text: the frequent case, checked fast."""
    if type(value) is str:
        return is_document or not _may_hold_base64(value)
    if type(value) is not list:
        return False
    texts = []
    for message in value:
        # An object of any name may be a file of `datasets`.
        if type(message) is not dict or not _are_of_text(tuple(message)) or dict in map(type, message.values()):
            return False
        content = message.get("content")
        if type(content) is str:
            texts.append(content)
        elif content is not None:
            return False
    return not _may_hold_base64("\n".join(texts))


def _may_hold_base64(text: str) -> bool:
    return any(map(text.__contains__, (_BASE64, *_BEGINS)))


@functools.lru_cache(maxsize=4096)
def _are_of_text(names: tuple[str, ...]) -> bool:
    """True if no field of these names may hold files."""
    return not any(map(_kind_of_name, names))


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


@functools.lru_cache(maxsize=4096)
def _kind_of_name(name: str) -> str | None:
    """The kind of files that a field of this name may hold; None: no files."""
    match = _FIELD.fullmatch(name)
    return None if match is None else _WORDS[match[1].lower()]


def _by_kind(holder: Mapping[str, Any]) -> dict[str, str]:
    """Kind -> the first field of an object for which a placeholder may stand. For `_LOST` see `_files`."""
    found: dict[str, str] = {}
    for name, kind in _files(holder, by_name=True):
        found.setdefault(kind, name)
    return found


def _files(holder: Mapping[str, Any], by_name: bool = False) -> Iterator[tuple[str, str]]:
    """(name, kind) of the fields of an object that hold files.

    Args:
        holder: a record, a message or a part.
        by_name: a name that says the kind is enough; with `_LOST` before the kind if the field is empty.
    """
    for name, value in holder.items():
        kind = _kind_of_name(name)
        if kind is None and type(value) is dict and value.keys() == _STORED:
            kind = _FILE
        if kind is None:
            continue
        if not isinstance(value, str | list | dict) or not _is_filled(value):
            if by_name and name.lower() in _CERTAIN and not isinstance(value, int | float):  # a number is no file
                yield name, _LOST + kind
            continue
        if (by_name and kind != _FILE) or name.lower() in _CERTAIN or _is_file(value):
            yield name, kind


_LOST = "lost: "
"""Prefix of the kind of an empty field: a placeholder on its own line stands for a file that was lost."""
_STORED = {"bytes", "path"}
"""The keys with which `datasets` stores a file, in a column of any name."""


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


def _kind_of_base64(text: str) -> str | None:
    begin = base64.b64decode(text[:24])
    return next((kind for first, kind in _FIRST_BYTES.items() if re.match(first, begin, re.DOTALL)), None)


def _is_filled(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    # A table gives each row all keys: {"bytes": null, "path": null}.
    values: Iterable[Any] = value.values() if isinstance(value, dict) else value
    return any(each is not None and each != "" for each in values)


@dataclass(slots=True)
class _Search:
    """Searches a field for files.

    Attributes:
        rule: see `text_only`.
        beside: kind -> field of the record.
        base64: True: data URLs count as files.
        dropped: number of removed files.
    """

    rule: NotTextRule
    beside: Mapping[str, str]
    base64: bool
    dropped: int = field(default=0)

    def value(self, value: Any, where: str) -> Any:
        """The value without files; the same object if there are none."""
        before = self.dropped
        if isinstance(value, str):
            text = self._text(value, where, self.beside)
            if self.dropped > before and not text.strip():
                raise _nothing_left(where)
            return text
        if not isinstance(value, list):
            return value
        made = []
        for place, item in enumerate(value):
            if type(item) is dict:
                made.append(self._message(item, where, place))
            else:
                made.append(self.value(item, f"{where}[{place}]"))
        return value if _same(made, value) else made

    def _message(self, message: dict[str, Any], field_name: str, place: int) -> dict[str, Any]:
        content = message.get("content")
        where, before = f"{field_name}[{place}]", self.dropped
        own = dict(_files(message))
        for name, kind in own.items():
            self._found(f"'{where}.{name}' holds {kind}")
        beside = {**self.beside, **_by_kind(message)}
        if isinstance(content, str):
            content = self._text(content, where, beside)
        elif isinstance(content, list):
            parts = [*self._parts(content, where, beside)]
            content = content if _same(parts, content) else parts
        if self.dropped == before and content is message.get("content"):
            return message
        made = {name: value for name, value in message.items() if name not in own}
        if "content" in made:
            made["content"] = content
        if self.dropped > before and not _says(made):
            raise _nothing_left(where)
        return made

    def _parts(self, parts: list[Any], where: str, beside: Mapping[str, str]) -> Iterable[Any]:
        for place, part in enumerate(parts):
            at = f"{where}.content[{place}]"
            kind = _kind_of_part(part) if isinstance(part, dict) else None
            if kind is not None:
                of = f" (type {str(part['type'])[:40]!r})" if part.get("type") is not None else ""
                self._found(f"'{at}' is {kind}{of}")
            elif isinstance(part, str):
                yield self._text(part, at, beside)
            elif isinstance(part, dict) and isinstance(part.get("text"), str):
                text = self._text(part["text"], at, beside)
                if part.get("type") in _OTHER_TEXTS and not dict(_files(part)):
                    yield {"type": "text", "text": text}
                else:
                    yield part if text is part["text"] else {**part, "text": text}
            elif part is not None or self.rule == "reject":
                yield part

    def _text(self, given: str, where: str, beside: Mapping[str, str]) -> str:
        text, before = given, self.dropped

        def without_data(match: re.Match[str]) -> str:
            begin = match.string[match.start(2) - len("data:") :][:40]
            self._found(f"'{where}' holds {_WORDS[match[2].lower()]} as base64 ({begin} ...)")
            return ""

        def without_file(match: re.Match[str]) -> str:
            if (kind := _kind_of_base64(match[0])) is None:
                return match[0]
            self._found(f"'{where}' holds {kind} as base64 ({match[0][:40]} ...)")
            return ""

        def without_placeholder(match: re.Match[str]) -> str:
            kind = _WORDS[(match[1] or match[2]).lower()]
            name = beside.get(kind) or beside.get(_FILE) or (beside.get(_IMAGE) if kind == _VIDEO else None)
            if name is None:
                lost = beside.get(_LOST + kind)
                if lost is not None and _is_line(match):
                    self._found(f"'{where}' has {match[0]!r}, but its field {lost!r} is empty")
                    return ""
                return match[0]
            self._found(f"'{where}' has {match[0]!r}, which stands for {kind} of the field {name!r}")
            return ""

        if self.base64 and _may_hold_base64(text):
            text = _RAW.sub(without_file, _DATA_URL.sub(without_data, text))
        in_base64 = self.dropped
        if beside and ("<" in text or "[" in text):
            text = _PLACEHOLDER.sub(without_placeholder, text)
        if self.dropped > in_base64:
            text = text.strip()
        return text if self.dropped > before else given

    def _found(self, what: str) -> None:
        if self.rule == "reject":
            raise Reject("not_text", f"{what}: {_ADVICE}")
        self.dropped += 1


_OTHER_TEXTS = (None, "input_text", "output_text")
"""Types of parts that hold a text, like the type `text`: of Bedrock, and of OpenAI's Responses."""


def _is_line(match: re.Match[str]) -> bool:
    """True if a match stands alone in its line."""
    begin, end = match.string.rfind("\n", 0, match.start()) + 1, match.string.find("\n", match.end())
    rest = match.string[begin : match.start()] + match.string[match.end() : None if end < 0 else end]
    return not rest.strip()


def _same(made: Sequence[Any], given: Sequence[Any]) -> bool:
    return len(made) == len(given) and all(map(operator.is_, made, given))


def _nothing_left(where: str) -> Reject:
    message = f"'{where}' has no text beside its files, so there is nothing to keep: leave such records out"
    return Reject("not_text", message)


def _kind_of_part(part: Mapping[str, Any]) -> str | None:
    """The kind of file in a part of a content; None: the part is text, or unknown."""
    kind, text = part.get("type"), part.get("text")
    if isinstance(kind, str):
        match = _TYPE.search(kind)
        is_text = text and kind.lower() not in _CERTAIN and not _by_kind(part)  # a document may be one
        return None if match is None or is_text else _WORDS[match[1].lower()]
    return None if kind is not None or text is not None else next(iter(_by_kind(part)), None)


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
