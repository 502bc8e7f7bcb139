"""Resolves a tokenizer with transformers, and writes the files of the resolved tokenizer."""

import atexit
import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import json
import logging
import os
import re
import socket
import sys
import tempfile
import textwrap
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from beam_prep.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers

log = logging.getLogger("beam_prep")

_PARTS = ("post_processor", "pre_tokenizer", "pretokenizers", "processors")
"""Parts of a tokenizer.json with settings of offsets. Others stay as they are: a change makes another fingerprint."""
_FILES = ("tokenizer", "vocab", "spiece", "tekken")
"""The folder of a tokenizer has a file whose name begins so."""
_SHOWN = 6
_NO_LENGTH = 10**20  # transformers' value for "no limit" is larger
_SAVE_FAST = (
    "load it with transformers yourself (tekken.json: with PreTrainedTokenizerFast, beside mistral-common; vocab.json: "
    "with its class, as GPT2Tokenizer), and give the folder that `save_pretrained` of a fast tokenizer writes (one "
    "with tokenizer.json)"
)
_TOKENS = 64


PROBES = (
    "",
    " ",
    "Hello, world! It's 3.14159 o'clock; we'LL see...",
    "  leading and trailing  \n\n\n\ttabs\t\t and   runs    of spaces \r\n\r\n",
    "def f(x):\n    return {k: v**2 for k, v in x.items()}  # § 1_000_000\n\n\nclass A:\n\tpass\n",
    "https://example.org/a/b?c=d&e=f#g user@example.com C:\\path\\to\\file.txt <div class='x'>&nbsp;</div>",
    "Grüße aus Köln, ça va? ¿Qué tal? Łódź naïve façade Øresund",
    "e\u0301 \u00e9 \u212b \u00c5 \u2126 \u03a9 x\u0344 \ufb01 \u2460 \uff21\uff22 \u00bd \u1e9b\u0323",
    "Все счастливые семьи, ελληνικά, ქართული, հայերեն",
    "東京都は日本の首都です。你好，世界！한국어 텍스트",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea हिन्दी ไทย አማርኛ",
    "\U0001f600\U0001f9d1\u200d\U0001f680\U0001f1e9\U0001f1ea \u2764\ufe0f \u200b\ufeff\u00ad\u2028\u2029 \U00020000",
    "\x00\x01\x1f\x7f\x85\u00a0\u2003\u3000\ufffd\U0010fffd",
    "a" * 300 + " " + "xyzzy" * 60 + " " + "0123456789" * 20 + "\n" * 40 + " " * 90 + "-" * 70,
    "don't I'm you're they've he'd she'll IT'S DON'T \u2019s \u2019t 12345 1,234 1 2 3 \u0661\u0662 1a2b3c",
    "\u01c5\u01f2 \u00aa\u00ba \u2160 \u0345 \u1f88 \u0130\u0131 CamelCaseXMLHttpRequest snake_case ALLCAPS",
)
"""Scripts, code, white space, emoji, control characters, long words. Control tokens come in between."""


def resolve(path: str) -> dict[str, bytes]:
    """The files of a tokenizer that transformers loads.

    Args:
        path: a folder, or a name on the Hugging Face Hub.

    Raises:
        TokenizerError: there is no usable tokenizer.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer

    is_folder = os.path.isdir(path)
    offline = not is_folder and not hub_answers()
    try:
        found = AutoTokenizer.from_pretrained(path, local_files_only=offline, trust_remote_code=False)
    except Exception as error:  # transformers and the Rust library raise exceptions of all kinds for other files
        wanted = "a folder with tokenizer.json" + ("" if is_folder else ", or a name on the Hugging Face Hub")
        if offline:
            wanted += " (which does not answer, and the name is not in the local cache)"
        raise TokenizerError(f"no tokenizer in {path!r}: wanted {wanted}; {_what_is_wrong(path, error)}") from None
    for problem in _problems(path, found):
        raise TokenizerError(f"the tokenizer in {path!r}: {problem}")
    named = {**_nested(found), **found.special_tokens_map}
    special_tokens = {name: str(token) for name, token in named.items() if isinstance(token, str)}
    source = json.loads(found.backend_tokenizer.to_str())
    source["truncation"] = source["padding"] = None
    _keep_offsets(source)
    # Settings that the tokenizer.json does not hold, if they are unusual.
    names = ("split_special_tokens", "clean_up_tokenization_spaces")
    settings: dict[str, Any] = {name: True for name in names if getattr(found, name, False)}
    if 0 < found.model_max_length < _NO_LENGTH:  # 0 and -1 are used for "no limit"
        settings["model_max_length"] = int(found.model_max_length)
    template = found.chat_template
    if isinstance(template, dict):
        template, settings = one_template(template), {**settings, "chat_templates": template}
    written = json.dumps(source, ensure_ascii=False)
    _compare(found, rust_tokenizer(written.encode("utf-8", "surrogatepass"), settings), special_tokens)
    return files_of(written, special_tokens, template, settings)


def _nested(found: Any) -> dict[str, str]:
    """Special tokens in an object `special_tokens` of tokenizer_config.json, where transformers does not look."""
    nested = found.init_kwargs.get("special_tokens")
    return {k: v for k, v in nested.items() if isinstance(v, str)} if isinstance(nested, dict) else {}


def _problems(path: str, found: Any) -> Iterator[str]:
    """Why a tokenizer that transformers loads cannot be used, and what to do."""
    backend, template = getattr(found, "backend_tokenizer", None), found.chat_template
    if backend is None:
        yield f"{type(found).__name__} has no Rust tokenizer, which is needed to encode: {_SAVE_FAST}"
        return
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    if backend.get_vocab().keys() <= {"▁", *special}:  # classes of transformers load without their files
        yield (
            f"{type(found).__name__} has special tokens and no other, so its vocabulary is missing: wanted "
            f"{' or '.join(found.vocab_files_names.values())} in the folder"
        )
    if os.path.isdir(path):
        yield from _unknown_tokens(path, found)
    for name, token in _nested(found).items():
        if name not in found.special_tokens_map and name in str(template):
            yield (
                f"its chat template writes {name!r}, which tokenizer_config.json has only within 'special_tokens', "
                "where transformers does not look: it writes nothing. Name it at the top of tokenizer_config.json, as "
                f'"{name}": {json.dumps(token)}, or take it out of the template'
            )
    for token in backend.get_added_tokens_decoder().values():
        if token.normalized and backend.normalizer and not backend.normalizer.normalize_str(token.content):
            yield (
                f"its normalizer leaves nothing of the added token {token.content!r}, so the Rust library panics on "
                "texts such as '\u00a3': set the token's `normalized` to false in tokenizer.json"
            )
    if getattr(backend.model, "dropout", None):
        yield f"tokenizer.json has model.dropout {backend.model.dropout}, so a text would get other ids: set it to null"
    if not isinstance(found.model_max_length, int | float):
        yield f"tokenizer_config.json has model_max_length {found.model_max_length!r}: write a number, without quotes"
    for name, text in (template if isinstance(template, dict) else {"chat_template": template or ""}).items():
        if text.startswith("\ufeff"):
            yield f"the chat template {name!r} begins with a byte order mark (BOM): save it as UTF-8 without one"


def _what_is_wrong(path: str, error: Exception) -> str:
    """Why transformers does not load a tokenizer, and what to do."""
    if "trust_remote_code" in str(error):
        return f"this one has code of its own (`auto_map`), which is never run here: {_SAVE_FAST}"
    says = f"transformers says: {textwrap.shorten(f'{type(error).__name__}: {error}', 300)}"
    if not os.path.isdir(path):
        return says
    names = sorted(os.listdir(path))
    if not any(name.startswith(_FILES) and os.path.isfile(os.path.join(path, name)) for name in names):
        # The message of transformers is long, and about other kinds of tokenizers.
        return f"found {', '.join(map(repr, names[:_SHOWN])) or 'nothing in it'}"
    files = sorted(found for name in ("*.json", "*.model", "**/*.jinja") for found in Path(path).glob(name))
    for file in files:
        try:
            if file.read_bytes().startswith(b"version https://git-lfs"):
                return f"{file.name} is a Git LFS pointer, not the file: in its folder, type: git lfs pull"
            text = "" if file.suffix == ".model" else file.read_text("utf-8")
            if file.suffix == ".json":
                json.loads(text)
        except (OSError, ValueError, RecursionError) as problem:
            return f"{file.name} cannot be read ({problem}): copy it again, or mend it"
    # Beam's protobuf is below 7; sentencepiece 0.2.3 needs a later one.
    return f"{says}; pip install 'sentencepiece<0.2.3' tiktoken (for a *.model), or {_SAVE_FAST}"


def rust_tokenizer(source: bytes, settings: Mapping[str, Any]) -> "tokenizers.Tokenizer":
    """The Rust tokenizer of a tokenizer.json, with the settings that transformers gives it."""
    import tokenizers

    made = tokenizers.Tokenizer.from_buffer(source)
    if isinstance(made.model, tokenizers.models.Unigram):
        # Reading JSON, the library changes last bits of scores, and with them which of two equal splits wins.
        model = json.loads(source)["model"]
        vocab = [*map(tuple, model["vocab"])]
        made.model = tokenizers.models.Unigram(vocab, model["unk_id"], model["byte_fallback"])
    made.encode_special_tokens = settings.get("split_special_tokens", False)
    return made


def one_template(templates: Mapping[str, str]) -> str | None:
    """One template that renders like transformers' named ones; None without a template named `default`.

    transformers takes `tool_use`, if it exists, for a conversation with tools, and otherwise `default`.

    >>> one_template({"default": "{{ messages[0].content }}", "rag": "no"})
    '{{ messages[0].content }}'
    """
    default, with_tools = templates.get("default"), templates.get("tool_use")
    if default is None or with_tools is None:
        return default
    # Both render as if they stood alone: a line break behind a tag is not written (and begins a line), `+` keeps the
    # blanks before a tag, and jinja ignores one line break at the end of a template.
    parts = (_END_OF_LINE.sub("", each) for each in (with_tools, default))
    return "{% if tools is not none %}\n" + "{%+ else %}\n".join(parts) + "{%+ endif %}"


_END_OF_LINE = re.compile(r"(\r\n|\r|\n)\Z")


def _unknown_tokens(folder: str, found: Any) -> Iterator[str]:
    """A problem for each token that the settings, or the tokenizer's class, name, and that the vocabulary lacks.

    transformers gives such a token an id behind the last one, for which a model has no row.
    """
    names = ("tokenizer", "config", "added_tokens", "tokenizer_config")
    source, model, added, config = (_json_of(folder, f"{name}.json") for name in names)
    if source:
        known = [_largest_id(source)]
    else:
        of_config = map(int, config.get("added_tokens_decoder", ()))
        known = [*found.backend_tokenizer.get_vocab(False).values(), *added.values(), *of_config]
    rows = max(max(known, default=-1) + 1, model.get("vocab_size") or 0)
    for token, number in found.get_added_vocab().items():
        if number >= rows:
            keys = [key for key, value in found.special_tokens_map.items() if value == token]
            yield (
                f"{keys[0] if keys else 'a setting'} names {token!r}, which the vocabulary lacks; "
                f"{type(found).__name__} gives it the new id {number}, past the last row of the model. Name a token of "
                "the vocabulary; or add it to tokenizer and model (add_tokens, resize_token_embeddings), and save both"
            )


def _json_of(folder: str, name: str) -> dict[str, Any]:
    """A JSON object of a folder that transformers has read; {} if the file is missing or holds none."""
    try:
        read = json.loads(Path(folder, name).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _compare(found: Any, mine: "tokenizers.Tokenizer", special_tokens: dict[str, str]) -> None:
    """Raises `TokenizerError` unless a Rust tokenizer gives the ids of transformers' own, `found`, for probes."""
    tokens = [*special_tokens.values(), *found.get_added_vocab()]
    tokens = [*dict.fromkeys(tokens[:_TOKENS] + tokens[-_TOKENS:])]
    texts = [*PROBES, *(f"{each}a {each} b\n{each}{each}" for each in tokens)]
    for text, special in itertools.product(texts, (False, True)):
        try:
            wanted = found(text, add_special_tokens=special)["input_ids"]
        except ValueError:  # CodeLlama's class refuses several <FILL_ME> in a text
            continue
        except Exception as error:  # the Rust library raises nothing narrower
            raise TokenizerError(
                f"transformers cannot encode {text[:40]!r} with this tokenizer: {error}; mend its vocabulary, or "
                "name a token for unknown text (unk_token)"
            ) from None
        ids = mine.encode(text, add_special_tokens=special).ids
        if ids != wanted:
            at = next(at for at in itertools.count() if ids[at : at + 1] != wanted[at : at + 1])
            raise TokenizerError(
                f"transformers and tokenizer.json differ on {text[:40]!r} from token {at} on: found "
                f"{ids[at : at + 12]}, wanted {wanted[at : at + 12]}: "
                "this tokenizer has a setting that is not known here, and cannot be used; tell us about it"
            )


def _keep_offsets(part: Any) -> None:
    """Makes offsets include white space: trimmed ones lose the tokens at the edge of a span. Changes no id."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        if key == "trim_offsets":
            part[key] = False
        elif isinstance(value, dict | list) and (isinstance(key, int) or key in _PARTS):
            _keep_offsets(value)


def hub_answers() -> bool:
    """True if the host of the Hugging Face Hub can be resolved. Its client would otherwise retry for a minute."""
    host = urllib.parse.urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


def files_of(
    source: str, special_tokens: dict[str, str], template: str | None, settings: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files of a resolved tokenizer, by name."""
    special_tokens = dict(sorted(special_tokens.items()))
    parsed = json.loads(source)
    more = [settings] if settings else []
    canonical = json.dumps([parsed, template, special_tokens, *more], sort_keys=True, ensure_ascii=False)
    fingerprint = hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
    facts = {"fingerprint": fingerprint, "max_id": _largest_id(parsed), "special_tokens": special_tokens}
    facts |= {"settings": settings} if settings else {}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special_tokens}
    config |= {name: value for name, value in settings.items() if name != "chat_templates"}
    texts = {"tokenizer.json": source, "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=1) + "\n"}
    if template is not None:
        texts["chat_template.jinja"] = template
    texts[FACTS_FILE] = json.dumps(facts, ensure_ascii=False, indent=1) + "\n"
    return {name: text.encode("utf-8", "surrogatepass") for name, text in texts.items()}


def _largest_id(source: Any) -> int:
    """The largest id in a tokenizer.json, added tokens included."""
    known = source["model"]["vocab"]
    ids = known.values() if isinstance(known, dict) else range(len(known))
    return max(itertools.chain(ids, (token["id"] for token in source["added_tokens"])), default=0)


def is_resolved(folder: Path) -> bool:
    """True for a folder with the files of a resolved tokenizer; False for other folders, and if one was edited."""
    try:
        contents = read(folder)
        template, facts = contents.get("chat_template.jinja"), json.loads(contents[FACTS_FILE])
        wanted = files_of(
            contents["tokenizer.json"].decode("utf-8", "surrogatepass"),
            facts["special_tokens"],
            None if template is None else template.decode("utf-8", "surrogatepass"),
            facts.get("settings", {}),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return wanted == contents


# The cache of this user's resolved tokenizers: to resolve one with transformers takes two seconds.
#
# A folder of the cache is named by the digest of everything that it depends on: the bytes of the tokenizer's files, the
# versions of the libraries that read them, and our own code.

FACTS_FILE = "beam_prep.json"
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", FACTS_FILE)
"""The files of a resolved tokenizer. The template may be missing."""

_LIBRARIES = ("transformers", "tokenizers")
# The only subfolder of a tokenizer's folder that transformers reads.
BELOW = "additional_chat_templates"
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}


def digest_of(contents: Mapping[str, bytes]) -> str:
    """sha256 of files: their names, sizes and bytes."""
    found = hashlib.sha256()
    for name, content in sorted(contents.items()):
        found.update(f"{name} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def read(folder: Path) -> dict[str, bytes]:
    """The files of `FILES` in a folder, by name.

    Raises:
        OSError: a file exists, but cannot be read.
    """
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def cache() -> Path:
    """This user's cache folder; if it cannot be used, a temporary folder of this process."""
    return usable(Path(platformdirs.user_cache_dir("beam_prep", appauthor=False)))


@functools.cache
def usable(folder: Path) -> Path:
    """The folder, made if needed; a temporary folder if it cannot be written, as on workers without a home folder."""
    if folder.is_absolute():
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    log.warning("resolved tokenizers are kept for this run only: %s cannot be written; set XDG_CACHE_HOME", folder)
    made = tempfile.TemporaryDirectory(prefix="beam_prep-", ignore_cleanup_errors=True)
    atexit.register(made.cleanup)
    return Path(made.name)


def kept(name: str, make: Callable[[], Mapping[str, bytes]]) -> Path:
    """The folder of this name in the cache, made of these files if one of them is missing.

    Other processes may make or read it at the same time: each file appears whole, and the facts come last. Who cleans a
    disk by the age of files leaves a folder without them: they are made again.

    Raises:
        TokenizerError: it cannot be written.
    """
    folder = cache() / "tokenizers" / name
    if not all((folder / each).is_file() for each in ("tokenizer.json", FACTS_FILE)):
        contents = make()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as made:
                put(Path(made), contents)
                for each in sorted(contents, key=FACTS_FILE.__eq__):
                    Path(made, each).replace(folder / each)
        except OSError as error:  # a full disk
            raise TokenizerError(
                f"no folder for resolved tokenizers ({error}): set XDG_CACHE_HOME to one that can be written"
            ) from None
    return folder


def put(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes a tokenizer's files into a folder, in place of the files of `FILES`. Makes the folder if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def remembered(state: list[str] | None, make: Callable[[], Mapping[str, bytes]]) -> Path:
    """The folder of a resolved tokenizer in the cache.

    Args:
        state: what the result depends on, apart from our own code; None: on more than can be compared.
        make: makes the files.
    """
    if state is None:
        contents = make()
        return kept(digest_of(contents), lambda: contents)
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update("\0".join([sys.version, *state]).encode("utf-8", "surrogatepass"))
    return kept(digest.hexdigest(), make)


def state_of_folder(folder: str) -> list[str] | None:
    """Versions of libraries, and a digest of a folder's files; None if the result may depend on more."""
    # A name on the Hub may be another tokenizer tomorrow. If transformers is imported, other classes may be registered,
    # and the import is the slow part.
    if not os.path.isdir(folder) or "transformers" in sys.modules:
        return None
    places = [place for place in (Path(folder), Path(folder, BELOW)) if place.is_dir()]
    files = sorted(path for place in places for path in place.iterdir() if path.is_file())
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in files if path.suffix not in WEIGHTS}
    return [*(f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES), digest_of(contents)]
