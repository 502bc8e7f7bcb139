"""Tokenizers, which transformers resolves once and the Rust library then uses alone.

`Tokenizer.load` asks `transformers.AutoTokenizer` (the reference: what it gives is right) and writes the answer
into a folder: the backend's `tokenizer.json`, the special tokens, the chat template. Workers read that folder with
`tokenizers` and jinja2 and never import transformers. Every output keeps the folder, so that it can be decoded.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import socket
import tempfile
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from beam_prep.core.chat.template import ChatTemplate
from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.encoding import tokenizer_cache as resolve
from beam_prep.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers

_TEXTS_AT_ONCE = 512
# Parts of a tokenizer.json that say how offsets are made.
_PARTS = ("post_processor", "pre_tokenizer", "pretokenizers", "processors")
_CUT = "\ufffd"  # what decoders give for bytes that are no character
_LONGEST_CUT = 16  # tokens


class Encoder(Protocol):
    """Encodes texts: the methods that every backend has."""

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> Ragged:
        """Ids of each text, int32, without truncation or padding."""
        ...

    def encode_spans(self, texts: Sequence[str], add_special_tokens: bool, spans: Array) -> tuple[Ragged, Array]:
        """Ids of each text, and the tokens that overlap each character span.

        Args:
            texts: what to encode.
            add_special_tokens: with the tokenizer's own special tokens.
            spans: int64 [spans, 3]: index of the text (ascending), first character, one past the last. Characters
                count in the text as given, whatever the tokenizer's normaliser makes of it.

        Returns:
            The ids, and int64 [spans, 2]: first token and one past the last, counted in their text. An empty span
            overlaps nothing: both are equal.
        """
        ...


class TokenizerSource(Protocol):
    """A place from which processes on other machines get a resolved tokenizer's files. Picklable."""

    def __hash__(self) -> int: ...

    def fetch(self, folder: Path) -> None:
        """Copies the files into an existing folder.

        Raises:
            TokenizerError: they cannot be read; the message says where they should be.
        """
        ...


class _Facts(NamedTuple):
    special_tokens: dict[str, str]
    chat_template: str | None
    max_id: int


def _contents(folder: str, fingerprint: str, digest: str) -> dict[str, bytes]:
    """See `Tokenizer.contents`."""
    try:
        found = resolve.read(Path(folder))
    except OSError as error:
        raise TokenizerError(f"the tokenizer in {folder} cannot be read ({error}): run again") from None
    if resolve.digest_of(found) != digest:
        raise TokenizerError(
            f"the tokenizer in {folder} changed: its files are not those that were resolved "
            f"(fingerprint {fingerprint}): run again"
        )
    return found


@functools.lru_cache(maxsize=4)
def _read_facts(folder: str, fingerprint: str, digest: str) -> _Facts:
    contents = _contents(folder, fingerprint, digest)
    facts = json.loads(contents[resolve.FACTS_FILE])
    template = contents.get("chat_template.jinja")
    text = None if template is None else template.decode("utf-8")
    return _Facts(facts["special_tokens"], text, facts["max_id"])


class _Loaded(NamedTuple):
    backend: "tokenizers.Tokenizer"
    controls: tuple[str, ...]


@functools.lru_cache(maxsize=4)
def _loaded(folder: str, fingerprint: str, digest: str) -> _Loaded:
    import tokenizers

    backend = tokenizers.Tokenizer.from_buffer(_contents(folder, fingerprint, digest)["tokenizer.json"])
    added = backend.get_added_tokens_decoder().values()
    return _Loaded(backend, tuple(sorted((token.content for token in added if token.special), key=len, reverse=True)))


@functools.lru_cache(maxsize=4)
def _fetched(fingerprint: str, digest: str, source: TokenizerSource) -> str:
    """The folder on this machine of a tokenizer that a launcher elsewhere resolved; copied here once.

    The first process copies. A file gets its name only when it is complete, and a folder is used only if all of it
    has the digest, so processes that copy at the same time do no harm.
    """
    # On machines of workers every core has a process: threads of the Rust library would be more than there are cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    folder = resolve.bundles() / fingerprint
    with contextlib.suppress(OSError):
        if resolve.digest_of(resolve.read(folder)) == digest:
            return str(folder)
    with tempfile.TemporaryDirectory(prefix="beam_prep-tokenizer-") as made:
        source.fetch(Path(made))
        contents = resolve.read(Path(made))
    if resolve.digest_of(contents) != digest:
        raise TokenizerError(f"the tokenizer in {source} is not the launcher's ({fingerprint}): launch again")
    return str(resolve.keep(fingerprint, contents))


class Tokenizer:
    """A resolved tokenizer. Cheap to pickle (a path and two digests); each process loads it once, at first use.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> ids = tokenizer.encode(["Hello there"], add_special_tokens=False)
    >>> tokenizer.decode(ids[0])
    'Hello there'

    Its named special tokens, largest id and chat template are known without loading it.

    Args:
        folder: where its files are.
        fingerprint: sha256 of its `tokenizer.json` (in canonical form), chat template and special tokens.
        digest: of the bytes of its files: see `resolve.digest_of`. They are compared with it whenever they are read.
        source: where processes on other machines get its files from; they are then in a folder of their own.
    """

    def __init__(self, folder: str, fingerprint: str, digest: str, source: TokenizerSource | None = None) -> None:
        self._folder = folder
        self.fingerprint = fingerprint
        self._digest = digest
        self._source = source

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._folder, self.fingerprint, self._digest, self._source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    @property
    def folder(self) -> str:
        """The folder of its files on this machine."""
        return self._folder if self._source is None else _fetched(self.fingerprint, self._digest, self._source)

    def contents(self) -> dict[str, bytes]:
        """Its files by name, as they were when it was resolved.

        Raises:
            TokenizerError: they were edited, or are damaged.
        """
        return _contents(self.folder, self.fingerprint, self._digest)

    def from_source(self, source: TokenizerSource) -> "Tokenizer":
        """This tokenizer for processes on other machines, which get its files from there."""
        return Tokenizer(self._folder, self.fingerprint, self._digest, source)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """A tokenizer folder (local), or a name on the Hugging Face Hub.

        Padding and truncation that are stored in a `tokenizer.json` are switched off. Tokens in an object
        `special_tokens` of `tokenizer_config.json` count where the usual keys do not name them.

        Raises:
            TokenizerError: there is no tokenizer that can be used.
        """
        if (kept := _kept(Path(path))) is not None:
            return kept

        return Tokenizer(*resolve.remembered(str(path), lambda: _resolve(str(path))))

    def save(self, folder: str | os.PathLike[str]) -> "Tokenizer":
        """Copies the tokenizer's files; `AutoTokenizer.from_pretrained(folder)` reads them too."""
        target = resolve.put(Path(folder), self.contents())
        return Tokenizer(str(target), self.fingerprint, self._digest)

    def keep(self) -> "Tokenizer":
        """Copies its files to the folder of this user's resolved tokenizers."""
        folder = resolve.keep(self.fingerprint, self.contents())
        return Tokenizer(str(folder), self.fingerprint, self._digest)

    def with_template(self, source: str) -> "Tokenizer":
        """This tokenizer with another chat template; its fingerprint is another, too."""
        text = self.contents()["tokenizer.json"].decode("utf-8", "surrogatepass")
        return Tokenizer(*_write(text, self.special_tokens, source))

    @property
    def _loaded_tokenizer(self) -> _Loaded:
        return _loaded(self.folder, self.fingerprint, self._digest)

    @property
    def _facts(self) -> _Facts:
        return _read_facts(self.folder, self.fingerprint, self._digest)

    @property
    def special_tokens(self) -> dict[str, str]:
        """Named special tokens that are set: {"bos_token": "<s>", ...}."""
        return self._facts.special_tokens

    def id_of(self, name: str) -> int | None:
        """The id of a named special token (`bos_token` ...), None where it is not set."""
        token = self.special_tokens.get(name)
        found = None if token is None else self._loaded_tokenizer.backend.token_to_id(token)
        return None if found is None else int(found)

    @property
    def bos_id(self) -> int | None:
        """Id of the BOS token, None where there is none."""
        return self.id_of("bos_token")

    @property
    def pad_id(self) -> int | None:
        """Id of the PAD token, or of EOS where there is no PAD; None where there is neither."""
        pad = self.id_of("pad_token")
        return self.id_of("eos_token") if pad is None else pad

    @property
    def max_id(self) -> int:
        """The largest id, added tokens included."""
        return self._facts.max_id

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template."""
        return self._facts.chat_template

    @property
    def controls(self) -> tuple[str, ...]:
        """Texts of all tokens that are marked special, the longest first."""
        return self._loaded_tokenizer.controls

    @property
    def reference(self) -> "tokenizers.Tokenizer":
        """The Rust tokenizer, as transformers set it up."""
        return self._loaded_tokenizer.backend

    def template(self, source: str | None = None, plans: bool = False, date: str | None = None) -> ChatTemplate:
        """The compiled chat template, the same object whenever asked for; of `source`, where it is given.

        Args:
            source: a template in place of the tokenizer's own.
            plans, date: see `ChatTemplate`.

        Raises:
            TokenizerError: the tokenizer has none; or see `ChatTemplate`.
        """
        if source is None and self.chat_template is None:
            raise TokenizerError(
                "this tokenizer has no chat template, and the config asks for one (template: true): put a "
                "chat_template.jinja into the tokenizer's folder, or use text sections"
            )
        return _chat_template(self, source, plans, date)

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> Ragged:
        """Ids of each text, int32, without truncation or padding."""
        values: list[Array] = []
        lengths: list[int] = []
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            batch = self._loaded_tokenizer.backend.encode_batch_fast(
                list(texts[first : first + _TEXTS_AT_ONCE]), add_special_tokens=add_special_tokens
            )
            ids = [encoding.ids for encoding in batch]
            sizes = [len(row) for row in ids]
            values.append(np.fromiter(itertools.chain.from_iterable(ids), np.int32, sum(sizes)))
            lengths += sizes
        return Ragged.from_lengths(np.concatenate(values) if values else np.zeros(0, np.int32), lengths)

    def encode_spans(self, texts: Sequence[str], add_special_tokens: bool, spans: Array) -> tuple[Ragged, Array]:
        """Ids of each text, and the tokens that overlap each character span, by the reference's offsets.

        See `Encoder`.
        """
        ids: list[list[int]] = []
        places = np.zeros((len(spans), 2), np.int64)
        borders = np.searchsorted(spans[:, 0], np.arange(len(texts) + 1))
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            chunk = list(texts[first : first + _TEXTS_AT_ONCE])
            batch = self._loaded_tokenizer.backend.encode_batch(chunk, add_special_tokens=add_special_tokens)
            for text, encoding in enumerate(batch, first):
                ids.append(encoding.ids)
                for span in range(borders[text], borders[text + 1]):
                    places[span] = _token_span(encoding, int(spans[span, 1]), int(spans[span, 2]))
        sizes = [len(row) for row in ids]
        flat = np.fromiter(itertools.chain.from_iterable(ids), np.int32, sum(sizes))
        return Ragged.from_lengths(flat, sizes), places

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens visible."""
        return str(self._loaded_tokenizer.backend.decode([int(i) for i in ids], skip_special_tokens=False))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A text for each token; joined they are the text of all.

        A character that several tokens make belongs to the last of them. Bytes that never become one stay with their
        own tokens, as U+FFFD. (Decoders with byte fallback give up an entire run of byte tokens for one cut character:
        there the pieces show the complete characters of the run.)
        """
        texts: list[str] = []
        # Texts depend on neighbours, so each is what its token adds to the text of the last few.
        window: list[int] = []
        before, shown, first = "", 0, 0  # text of the window, its characters that have a token, its first new token
        for token in ids:
            window.append(int(token))
            text = self.decode(window)
            complete = len(text.rstrip(_CUT))
            if complete == len(text) and texts and text.startswith(before):
                texts[-1] += before[shown:]  # what this token did not complete
                shown = max(shown, len(before))
            if complete < len(text) and len(window) - first < _LONGEST_CUT:
                texts.append(text[shown:complete])
                before, shown = text, max(shown, complete)
                continue
            texts.append(text[shown:])
            window = window[first:]
            before, first = self.decode(window), len(window)
            shown = len(before)
        if texts:
            texts[-1] += before[shown:]
        return texts


@functools.lru_cache(maxsize=8)
def _chat_template(tokenizer: Tokenizer, source: str | None, plans: bool, date: str | None) -> ChatTemplate:
    # Kept, since plans are learnt from what was rendered.
    return ChatTemplate(source or tokenizer.chat_template or "", tokenizer.special_tokens, plans, date)


def _token_span(encoding: Any, start: int, stop: int) -> tuple[int, int]:
    """The tokens that overlap the characters [start, stop)."""
    # A normaliser may take characters away; then the nearest ones inside the span count.
    first = next((token for at in range(start, stop) if (token := encoding.char_to_token(at)) is not None), None)
    if first is None:
        return 0, 0
    last = next(token for at in range(stop - 1, start - 1, -1) if (token := encoding.char_to_token(at)) is not None)
    # char_to_token gives the first token of a character; its other bytes may be tokens of their own.
    while (following := encoding.token_to_chars(last + 1)) is not None and following[0] < stop:
        last += 1
    return int(first), int(last) + 1


def _kept(folder: Path) -> Tokenizer | None:
    """The tokenizer of a folder that `save` wrote; None for other folders, or if the files were edited."""
    try:
        contents = resolve.read(folder)
    except OSError:
        return None
    texts = _texts_of(contents)
    if texts != contents:
        return None
    return Tokenizer(str(folder), json.loads(texts[resolve.FACTS_FILE])["fingerprint"], resolve.digest_of(texts))


def fingerprint_of(contents: Mapping[str, bytes]) -> str | None:
    """The fingerprint of a resolved tokenizer, computed from its files; None if they are not those of one."""
    texts = _texts_of(contents)
    return None if texts is None else str(json.loads(texts[resolve.FACTS_FILE])["fingerprint"])


def _texts_of(contents: Mapping[str, bytes]) -> dict[str, bytes] | None:
    """The files as `_texts` would write them; None where they are not those of a tokenizer."""
    try:
        template = contents.get("chat_template.jinja")
        return _texts(
            contents["tokenizer.json"].decode("utf-8", "surrogatepass"),
            json.loads(contents[resolve.FACTS_FILE])["special_tokens"],
            None if template is None else template.decode("utf-8", "surrogatepass"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _largest_id(source: Any) -> int:
    """The largest id in a tokenizer.json, added tokens included."""
    known = source["model"]["vocab"]
    ids = known.values() if isinstance(known, dict) else range(len(known))
    return max(itertools.chain(ids, (token["id"] for token in source["added_tokens"])), default=0)


def _resolve(path: str) -> resolve.ResolvedTokenizer:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer

    looks_local = os.path.isdir(path) or path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not os.path.isdir(path):
        raise TokenizerError(
            f"no tokenizer folder {path!r}: --tokenizer_path wants a folder with tokenizer.json, or a Hugging Face name"
        )
    offline = not looks_local and not _hub_answers()
    try:
        found = AutoTokenizer.from_pretrained(path, local_files_only=offline)
    except Exception as error:  # the Rust library and transformers raise exceptions of all kinds on other files
        hint = "a folder with tokenizer.json"
        if not looks_local:
            hint += ", or a name on the Hugging Face Hub"
        if offline:
            hint += " (which does not answer, and the name is not in the local cache)"
        reason = f"{type(error).__name__}: {error}".splitlines()[0].strip()
        raise TokenizerError(f"no tokenizer in {path!r}: wanted {hint}. transformers says: {reason}") from None
    backend = getattr(found, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(f"the tokenizer in {path!r} has no tokenizer.json (no Rust tokenizer): save a fast one")
    backend.no_padding()
    backend.no_truncation()
    nested = found.init_kwargs.get("special_tokens")
    named = {k: v for k, v in nested.items() if isinstance(v, str)} if isinstance(nested, dict) else {}
    special_tokens = {**named, **{k: str(v) for k, v in found.special_tokens_map.items() if isinstance(v, str)}}
    template = found.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    source = json.loads(backend.to_str())
    _keep_offsets(source)
    return _write(json.dumps(source, ensure_ascii=False), special_tokens, template)


def _keep_offsets(part: Any) -> None:
    """Offsets that include white space: trimmed ones lose the tokens at the edge of a span. No id changes."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        if key == "trim_offsets":
            part[key] = False
        elif isinstance(value, dict | list) and (isinstance(key, int) or key in _PARTS):
            _keep_offsets(value)


def _hub_answers() -> bool:
    """True if the Hugging Face Hub can be resolved. Its client would otherwise retry for a minute."""
    host = urllib.parse.urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


def _texts(source: str, special_tokens: dict[str, str], template: str | None) -> dict[str, bytes]:
    """The files of a resolved tokenizer, by name."""
    special_tokens = dict(sorted(special_tokens.items()))
    parsed = json.loads(source)
    canonical = json.dumps([parsed, template, special_tokens], sort_keys=True, ensure_ascii=False)
    fingerprint = hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
    facts = {"fingerprint": fingerprint, "max_id": _largest_id(parsed), "special_tokens": special_tokens}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special_tokens}
    texts = {"tokenizer.json": source, "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1) + "\n"}
    if template is not None:
        texts["chat_template.jinja"] = template
    texts[resolve.FACTS_FILE] = json.dumps(facts, ensure_ascii=False, indent=1) + "\n"
    return {name: text.encode("utf-8", "surrogatepass") for name, text in texts.items()}


def _write(source: str, special_tokens: dict[str, str], template: str | None) -> resolve.ResolvedTokenizer:
    """Puts the files where every process of this machine finds them."""
    texts = _texts(source, special_tokens, template)
    fingerprint: str = json.loads(texts[resolve.FACTS_FILE])["fingerprint"]
    return resolve.ResolvedTokenizer(str(resolve.keep(fingerprint, texts)), fingerprint, resolve.digest_of(texts))
