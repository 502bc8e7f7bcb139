"""Tokenizers: transformers resolves one once, then the Rust library uses it alone.

`Tokenizer.load` asks `transformers.AutoTokenizer`, the reference, and writes a folder: the backend's `tokenizer.json`,
the special tokens, the chat template. Workers read that folder with `tokenizers` and jinja2, and never import
transformers. Every output keeps the folder, so that it can be decoded.
"""

import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from beam_prep.data.fim import Parts
from beam_prep.data.ragged import Array, Ragged, characters, ranges
from beam_prep.errors import TokenizerError
from beam_prep.tokens import resolver
from beam_prep.tokens.resolver import resolve, rust_tokenizer

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True, slots=True, eq=False)
class CharSpans:
    """Spans of characters in texts.

    Attributes:
        text: int64, ascending: index of the text.
        start, stop: int64: first character and one past the last. They count characters of the given text, before the
            tokenizer's normaliser changes it.
    """

    text: Array
    start: Array
    stop: Array

    def __len__(self) -> int:
        return len(self.text)


TEXTS_AT_ONCE, CHARACTERS_AT_ONCE = 512, 1 << 16
"""Most texts and characters in one call of the Rust library, whose answer takes about 300 bytes a token."""
_CUT = "\ufffd"  # decoders give this for bytes that are no character
_LONGEST_CUT = 16  # tokens


TokenizerSource = Callable[[], dict[str, bytes]]
"""Gives processes on other machines a resolved tokenizer's files by name. Picklable and hashable; as a text, the place.
Raises TokenizerError if they cannot be read, with the place where they should be."""


_kept = functools.lru_cache(maxsize=4)
"""Keeps a property in this process, for the tokenizers that it used last."""

_NO_PREFIX: dict[Any, dict[str, Any]] = {
    "Metaspace": {"prepend_scheme": "never"},
    "ByteLevel": {"add_prefix_space": False},
    "Prepend": {"type": "Sequence", "normalizers": []},  # an empty one writes the first character twice
}


def _without_prefix(step: dict[str, Any]) -> dict[str, Any]:
    """A step of a normaliser or pre-tokenizer, changed to add no prefix to a text."""
    return {**step, **_NO_PREFIX.get(step.get("type"), {})}


def state_of(part: Any, change: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any] | None:
    """The state of a normaliser or pre-tokenizer, as in `tokenizer.json`; None without one. `change` gets each step."""
    state: dict[str, Any] | None = None if part is None else json.loads(part.__getstate__(), object_hook=change)
    return state


@_kept
def _fetched(digest: str, source: TokenizerSource) -> str:
    """The local folder of a tokenizer that a launcher on another machine resolved; copied here once."""
    # Workers have a process for each core: threads of the Rust library would outnumber the cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAYON_NUM_THREADS", "1")

    def fetch() -> dict[str, bytes]:
        contents = source()
        if resolver.digest_of(contents) != digest:
            raise TokenizerError(f"the tokenizer in {source} is not the launcher's: launch again")
        return contents

    return str(resolver.kept(digest, fetch))


@dataclass(frozen=True, repr=False)
class Tokenizer:
    """A resolved tokenizer. Cheap to pickle (a path and a digest); each process loads it once, at first use.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> ids = tokenizer.encode(["Hello there"], add_special_tokens=False)
    >>> tokenizer.decode(ids[0])
    'Hello there'

    Its special tokens, largest id and chat template are known without loading the Rust tokenizer.

    Args:
        folder: the folder of its files; with a source, the digest of their bytes (`resolver.digest_of`).
        fingerprint: sha256 of its `tokenizer.json` (in canonical form), chat template and special tokens.
        source: where processes on other machines get the files from; None: from `folder`.
    """

    _folder: str
    fingerprint: str
    _source: TokenizerSource | None = None

    @property
    def folder(self) -> str:
        """The folder of its files on this machine."""
        return self._folder if self._source is None else _fetched(self._folder, self._source)

    def contents(self) -> dict[str, bytes]:
        """Its files by name.

        Raises:
            TokenizerError: they are gone.
        """
        found = resolver.read(Path(self.folder))
        if not found:
            raise TokenizerError(f"the tokenizer in {self.folder} is gone: run again")
        return found

    def from_source(self, source: TokenizerSource) -> "Tokenizer":
        """This tokenizer for processes on other machines, which get its files from the source."""
        return Tokenizer(resolver.digest_of(self.contents()), self.fingerprint, source)

    @classmethod
    def _of(cls, folder: Path) -> "Tokenizer":
        """The tokenizer whose files are in a folder."""
        return cls(str(folder), json.loads((folder / resolver.FACTS_FILE).read_bytes())["fingerprint"])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Loads a tokenizer from a local folder, or by its name on the Hugging Face Hub.

        Padding and truncation stored in a `tokenizer.json` are switched off. Tokens in an object `special_tokens` of
        `tokenizer_config.json` count if the usual keys do not name them.

        Raises:
            TokenizerError: there is no usable tokenizer.
        """
        name = str(path)
        if resolver.is_resolved(Path(name)):
            return cls._of(Path(name))
        return cls._of(resolver.remembered(resolver.state_of_folder(name), lambda: resolve(name)))

    def save(self, folder: str | os.PathLike[str]) -> "Tokenizer":
        """Copies the tokenizer's files to a folder, which `AutoTokenizer.from_pretrained` reads, too."""
        resolver.put(Path(folder), self.contents())
        return Tokenizer._of(Path(folder))

    def keep(self) -> "Tokenizer":
        """Copies the files to the folder of this user's resolved tokenizers."""
        return Tokenizer._of(resolver.remembered(None, self.contents))

    def with_template(self, source: str) -> "Tokenizer":
        """This tokenizer with another chat template, and so with another fingerprint.

        Args:
            source: see `template_source`.

        Raises:
            TokenizerError: there is no template of this name.
        """
        text, contents = self.template_source(source), self.contents()

        def derive() -> dict[str, bytes]:
            rust = contents["tokenizer.json"].decode("utf-8", "surrogatepass")
            return resolver.files_of(rust, self.special_tokens, text, self._facts["settings"])

        return Tokenizer._of(resolver.remembered([f"{resolver.digest_of(contents)}\0{text}"], derive))

    def template_source(self, given: str | None) -> str | None:
        """The source of the chat template that a config names; None: the config names none, and there is none.

        Args:
            given: the template itself, or the name of one of `chat_templates`; None: the tokenizer's own.

        Raises:
            TokenizerError: there is no template of this name.
        """
        if not given:
            return self.chat_template
        if "{{" in given or "{%" in given:
            return given
        if given in self.chat_templates:
            return self.chat_templates[given]
        names = ", ".join(map(repr, sorted(self.chat_templates))) or "nothing"
        raise TokenizerError(
            f"input.chat_template: found {given!r}, which is no template; this tokenizer's are named {names} "
            f"(a file beside the config has a dot in its path: {given}.jinja)"
        )

    @property
    @_kept
    def _facts(self) -> dict[str, Any]:
        """`max_id`, `special_tokens`, `settings` and `chat_template`."""
        contents = self.contents()
        template = contents.get("chat_template.jinja")
        source = None if template is None else template.decode("utf-8")
        return {"settings": {}, "chat_template": source, **json.loads(contents[resolver.FACTS_FILE])}

    @property
    def special_tokens(self) -> dict[str, str]:
        """Named special tokens that are set: {"bos_token": "<s>", ...}."""
        found: dict[str, str] = self._facts["special_tokens"]
        return found

    def id_of(self, name: str) -> int | None:
        """The id of a named special token (`bos_token` ...); None if it is not set."""
        token = self.special_tokens.get(name)
        return None if token is None else self.reference.token_to_id(token)

    @property
    def bos_id(self) -> int | None:
        """Id of the BOS token; None without one."""
        return self.id_of("bos_token")

    @property
    def pad_id(self) -> int | None:
        """Id of the PAD token, or of EOS if there is no PAD; None without both."""
        pad = self.id_of("pad_token")
        return self.id_of("eos_token") if pad is None else pad

    @property
    def max_id(self) -> int:
        """The largest id, added tokens included."""
        return int(self._facts["max_id"])

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template."""
        source: str | None = self._facts["chat_template"]
        return source

    @property
    def chat_templates(self) -> dict[str, str]:
        """Named chat templates -> their sources; {} if there is only one, without a name.

        `chat_template` renders like transformers: with `tool_use` for a conversation with tools, otherwise `default`.
        """
        found: dict[str, str] = self._facts["settings"].get("chat_templates", {})
        return found

    @property
    def model_max_length(self) -> int | None:
        """The most tokens that the model takes, by the tokenizer's settings; None if they do not say it."""
        length: int | None = self._facts["settings"].get("model_max_length")
        return length

    @property
    @_kept
    def added(self) -> dict[int, "tokenizers.AddedToken"]:
        """Id -> token that was added to the vocabulary, with its rules, ordered by id."""
        return dict(sorted(self.reference.get_added_tokens_decoder().items()))

    @property
    def controls(self) -> tuple[str, ...]:
        """Texts of all special tokens, the longest first."""
        return tuple(sorted((token.content for token in self.added.values() if token.special), key=len, reverse=True))

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens."""
        return frozenset(number for number, token in self.added.items() if token.special)

    @property
    @_kept
    def reference(self) -> "tokenizers.Tokenizer":
        """The Rust tokenizer with transformers' settings. Loads it into this process."""
        return rust_tokenizer(self.contents()["tokenizer.json"], self._facts["settings"])

    @property
    @_kept
    def inside(self) -> "tokenizers.Tokenizer":
        """The Rust tokenizer for text inside a document: it adds no prefix, such as SentencePiece's space.

        It is the reference itself if that adds no prefix.
        """
        parts = (self.reference.normalizer, self.reference.pre_tokenizer)
        after = [state_of(part, _without_prefix) for part in parts]
        if after == [state_of(part) for part in parts]:
            return self.reference
        made = json.loads(self.reference.to_str())
        made["normalizer"], made["pre_tokenizer"] = after
        return rust_tokenizer(json.dumps(made).encode(), self._facts["settings"])

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> Ragged:
        """Ids of each text, int32, without truncation or padding."""
        rows = [Ragged.from_lists([])]
        for chunk in chunks(texts):
            batch = self.reference.encode_batch_fast(chunk, add_special_tokens=add_special_tokens)
            rows.append(Ragged.from_lists([encoding.ids for encoding in batch]))
        return Ragged.concat(rows)

    def encode_spans(self, texts: Sequence[str], add_special_tokens: bool, spans: CharSpans) -> tuple[Ragged, Array]:
        """Ids of each text, and the tokens that overlap each character span, by the reference's offsets.

        Args:
            texts: what to encode.
            add_special_tokens: add the tokenizer's special tokens.
            spans: spans of the texts.

        Returns:
            the ids; and int64 [2, spans]: first token and one past the last, counted in their text; equal if a span is
            empty.
        """
        found = np.zeros((2, len(spans)), np.int64)
        if not len(spans):
            return self.encode(texts, add_special_tokens), found
        rows, strips = [], {at for at, token in self.added.items() if token.lstrip or token.rstrip}
        strips -= {at for at in strips if self.added[at].content.isspace()}  # their own text is white space, too
        borders = np.searchsorted(spans.text, np.arange(len(texts) + 1))
        text = 0
        for chunk in chunks(texts):
            batch = self.reference.encode_batch(chunk, add_special_tokens=add_special_tokens)
            ids = [encoding.ids for encoding in batch]  # each access makes a list
            rows.append(Ragged.from_lists(ids))
            for encoding, own in zip(batch, ids, strict=True):
                for span in range(borders[text], borders[text + 1]):
                    start, stop = int(spans.start[span]), int(spans.stop[span])
                    found[:, span] = _token_span(encoding, own, texts[text], start, stop, strips)
                text += 1
        return Ragged.concat(rows), found

    def encode_parts(self, texts: Sequence[Parts], add_special_tokens: bool) -> Ragged:
        """Ids of each text, int32. Each part is encoded alone; `inside` encodes all but the document's first part.

        >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
        >>> from beam_prep.data.fim import Parts
        >>> text = Parts(("<eos>", "Hello", "<eos>", " there"), 1)
        >>> tokenizer.decode(tokenizer.encode_parts([text], False)[0])
        '<eos>Hello<eos> there'
        """
        import tokenizers

        inside = self.inside
        if inside is self.reference:  # sentinels separate the parts already
            return self.encode(["".join(text.texts) for text in texts], add_special_tokens)
        rows = []
        for text in texts:
            parts = inside.encode_batch_fast([*text.texts], add_special_tokens=False)
            if begins := text.texts[text.first]:
                parts[text.first] = self.reference.encode(begins, add_special_tokens=False)
            whole = tokenizers.Encoding.merge(parts, growing_offsets=False)
            rows.append(self.reference.post_process(whole, None, add_special_tokens).ids)
        return Ragged.from_lists(rows)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens visible."""
        return str(self.reference.decode([int(i) for i in ids], skip_special_tokens=False))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A text for each token; joined, they are the text of all tokens.

        A character of several tokens belongs to the last of them. Bytes that never form a character are U+FFFD, behind
        at most 16 tokens without a text.
        """
        texts: list[str] = []
        # Texts depend on neighbours, so each piece is what its tokens add to the text of the piece before.
        window: list[int] = []
        before, first = "", 0  # the text of the piece before, and its number of tokens
        for token in ids:
            window.append(int(token))
            text = self.decode(window)
            if text.endswith(_CUT) and len(window) - first < _LONGEST_CUT:
                texts.append("")
                continue
            texts.append(text[len(before) :])
            window = window[first:]
            before, first = self.decode(window), len(window)
        if len(window) > first:
            texts[-1] += self.decode(window)[len(before) :]
        return texts


def chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Lists of texts, each for one call of the Rust library."""
    for part in ranges(characters(texts), CHARACTERS_AT_ONCE, TEXTS_AT_ONCE):
        yield list(texts[part])


def _token_span(
    encoding: Any, ids: Sequence[int], text: str, start: int, stop: int, strips: set[int]
) -> tuple[int, int]:
    """The tokens that overlap the characters [start, stop); `ids`: of the encoding.

    A token that takes white space beside it (`strips`) does not overlap by that: else a header of Phi-3 would be
    trained with an answer that begins with a blank.
    """

    def token_of(at: int) -> int | None:
        token: int | None = encoding.char_to_token(at)
        return None if token is not None and text[at].isspace() and ids[token] in strips else token

    # A normaliser may remove characters; then the nearest ones inside the span count.
    first = next((token for at in range(start, stop) if (token := token_of(at)) is not None), None)
    if first is None:
        return 0, 0
    last = next(token for at in range(stop - 1, start - 1, -1) if (token := token_of(at)) is not None)
    # char_to_token gives the first token of a character; its other bytes may have tokens of their own.
    while (more := encoding.token_to_chars(last + 1)) and more[0] < stop and ids[last + 1] not in strips:
        last += 1
    return int(first), int(last) + 1
