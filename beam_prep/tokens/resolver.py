"""Resolves a tokenizer with transformers, and writes the files of the resolved tokenizer."""

import codecs
import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import re
import socket
import textwrap
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from beam_prep.errors import TokenizerError
from beam_prep.reading.json_line import describe
from beam_prep.tokens import tokenizer_cache

if TYPE_CHECKING:
    import tokenizers

# Parts of a tokenizer.json with settings of offsets.
_PARTS = ("post_processor", "pre_tokenizer", "pretokenizers", "processors")


_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
)
"""The folder of a tokenizer has one of these files."""
_REASON = 300  # characters
_SHOWN = 6
_NO_LENGTH = 10**20  # transformers' value for "no limit" is larger
_SAVE_FAST = (
    "load it with transformers yourself, and give the folder that `save_pretrained` of a fast tokenizer writes "
    "(one with tokenizer.json)"
)
_TOKENS = 64
_CONVERSATIONS = (
    [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  What?\n"}],
)
_TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]


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


def resolve(path: str) -> tokenizer_cache.ResolvedTokenizer:
    """Loads a tokenizer with transformers, and writes its files.

    Args:
        path: a folder, or a name on the Hugging Face Hub.

    Raises:
        TokenizerError: there is no usable tokenizer.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer

    looks_local = os.path.isdir(path) or path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not os.path.isdir(path):
        raise TokenizerError(
            f"no tokenizer folder {path!r}: --tokenizer_path wants a folder with tokenizer.json, or a Hugging Face name"
        )
    offline = not looks_local and not hub_answers()
    try:
        found = AutoTokenizer.from_pretrained(path, local_files_only=offline, trust_remote_code=False)
    except Exception as error:  # transformers and the Rust library raise exceptions of all kinds for other files
        hint = "a folder with tokenizer.json"
        if not looks_local:
            hint += ", or a name on the Hugging Face Hub"
        if offline:
            hint += " (which does not answer, and the name is not in the local cache)"
        if looks_local and not any(os.path.exists(os.path.join(path, name)) for name in _FILES):
            # The message of transformers is long, and about other kinds of tokenizers.
            raise TokenizerError(f"no tokenizer in {path!r}: wanted {hint}; found {_found_in(path)}") from None
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if "trust_remote_code" in reason:
            raise TokenizerError(
                f"the tokenizer in {path!r} has code of its own (`auto_map`), which is never run here: {_SAVE_FAST}"
            ) from None
        if looks_local and (bad := _bad_file(path)) is not None:
            raise TokenizerError(f"no tokenizer in {path!r}: {bad}") from None
        known = _what_is_missing(path) if looks_local else ""
        raise TokenizerError(
            f"no tokenizer in {path!r}: wanted {hint}. "
            + (known or f"transformers says: {textwrap.shorten(reason, _REASON)}")
        ) from None
    backend = getattr(found, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(
            f"the tokenizer in {path!r} ({type(found).__name__}) has no Rust tokenizer, which is needed to encode: "
            f"{_SAVE_FAST}"
        )
    if looks_local:
        _check_named(path, found)
    nested = found.init_kwargs.get("special_tokens")
    named = {k: v for k, v in nested.items() if isinstance(v, str)} if isinstance(nested, dict) else {}
    special_tokens = {**named, **{k: str(v) for k, v in found.special_tokens_map.items() if isinstance(v, str)}}
    for name in named.keys() - found.special_tokens_map.keys():
        if name in str(found.chat_template):
            raise TokenizerError(
                f"the tokenizer in {path!r}: its chat template writes {name!r}, which tokenizer_config.json has only "
                "within 'special_tokens', where transformers does not look: it writes nothing. Name it at the top of "
                f'tokenizer_config.json, as "{name}": {json.dumps(named[name])}, or take it out of the template'
            )
    source = json.loads(backend.to_str())
    source["truncation"] = source["padding"] = None
    _keep_offsets(source)
    if source["model"].get("dropout"):
        raise TokenizerError(
            f"the tokenizer in {path!r}: tokenizer.json has model.dropout {source['model']['dropout']}, so a text "
            "would get other ids each time: set it to null"
        )
    # transformers would write a file's BOM into the text of every row.
    template, settings = found.chat_template, _settings(found)
    if isinstance(template, dict):
        found.chat_template = {name: text.removeprefix("\ufeff") for name, text in template.items()}
        template, settings = one_template(found.chat_template), {**settings, "chat_templates": found.chat_template}
    elif template is not None:
        template = template.removeprefix("\ufeff")
    written = json.dumps(source, ensure_ascii=False)
    copy = written.encode("utf-8", "surrogatepass")
    _compare(found, rust_tokenizer(copy, settings), template, special_tokens)
    resolved_here.clear()
    resolved_here[hashlib.sha256(copy).hexdigest()] = found
    return write(written, special_tokens, template, settings)


resolved_here: dict[str, Any] = {}
"""sha256 of tokenizer.json -> transformers' own object of the tokenizer that this process resolved last."""


def _settings(found: Any) -> dict[str, Any]:
    """A tokenizer's unusual settings that its tokenizer.json does not hold."""
    settings: dict[str, Any] = {
        name: True for name in ("split_special_tokens", "clean_up_tokenization_spaces") if getattr(found, name, False)
    }
    most = found.model_max_length
    if not isinstance(most, int | float):
        raise TokenizerError(
            f"tokenizer_config.json: model_max_length is {most!r}, and transformers cannot encode with that: write a "
            "number of tokens, without quotes"
        )
    if 0 < most < _NO_LENGTH:  # 0 and -1 are used for "no limit"
        settings["model_max_length"] = int(most)
    return settings


def rust_tokenizer(source: bytes, settings: Mapping[str, Any]) -> "tokenizers.Tokenizer":
    """The Rust tokenizer of a tokenizer.json, with the settings that transformers gives it."""
    import tokenizers

    made = tokenizers.Tokenizer.from_buffer(source)
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


def _check_named(folder: str, found: Any) -> None:
    """Raises `TokenizerError` if the settings, or the tokenizer's class, name a token that the vocabulary lacks.

    transformers gives such a token an id behind the last one, for which a model has no row. A token that only a class
    adds (GemmaTokenizer's pad_token) is ignored if nothing writes it.
    """
    config, others, added, model = (
        _json_of(folder, name)
        for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
    )
    known = {*found.backend_tokenizer.get_vocab(False), *added}
    known |= {token["content"] for token in _json_of(folder, "tokenizer.json").get("added_tokens", ())}
    known |= {token["content"] for token in config.get("added_tokens_decoder", {}).values()}
    rows = model.get("vocab_size") or 0
    template, encoded = str(found.chat_template), found.backend_tokenizer.encode("a").ids
    for key, value in [*config.items(), *others.items(), *found.special_tokens_map.items()]:
        for token in _texts_of(value) if key.endswith(("_token", "_special_tokens")) else ():
            number = found.convert_tokens_to_ids(token)
            if token not in known and number is not None and number >= rows:
                named = key in config or key in others
                if not named and not (key in _WRITTEN or key in template or token in template or number in encoded):
                    continue
                who = key if named else f"{key} of its class ({type(found).__name__})"
                raise TokenizerError(
                    f"the tokenizer in {folder!r}: {who} names {token!r}, which the vocabulary lacks; transformers "
                    f"gives it the new id {number}, past the last row of the model. Name a token of the vocabulary; or "
                    "add it to tokenizer and model (add_tokens, resize_token_embeddings), and save both"
                )


_WRITTEN = ("eos_token", "pad_token")
"""Tokens that rows may hold even if neither template nor post-processor writes them."""


def _texts_of(value: Any) -> Iterator[str]:
    """The tokens of a setting, whose value is a text, an object, a list, or an object by names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and "content" in value:
        yield value["content"]
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts_of(each)


def _json_of(folder: str, name: str) -> dict[str, Any]:
    """A JSON object of a folder that transformers has read; {} if the file is missing or holds none."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            read = json.load(file)
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


_OBJECTS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"),
    *("vocab.json", "tekken.json"),
)
"""Files of a tokenizer's folder that hold a JSON object. Some may be missing."""


def _bad_file(folder: str) -> str | None:
    """The first file of a folder that cannot be read, and why; None: all can be read."""
    for name in [*_OBJECTS, *_template_files(folder)]:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                text = file.read().decode("utf-8")
            read = json.loads(text) if name in _OBJECTS else {}
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        except UnicodeDecodeError as error:
            return f"{name} is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8"
        except (ValueError, RecursionError) as error:
            return f"{name} is no JSON ({error}): copy it again, or mend it"
        if not isinstance(read, dict):
            return f"{name} holds {describe(read)}, wanted a JSON object"
    return None


def _template_files(folder: str) -> list[str]:
    below = os.path.join(folder, tokenizer_cache.BELOW)
    names = sorted(os.listdir(below)) if os.path.isdir(below) else []
    return ["chat_template.jinja", *(os.path.join(tokenizer_cache.BELOW, name) for name in names)]


def templates_with_bom(folder: str) -> list[str]:
    """The files of a folder whose chat template begins with a byte order mark."""
    found = []
    for name in _template_files(folder):
        with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as file:
            found += [name] if file.read(3) == codecs.BOM_UTF8 else []
    given = _json_of(folder, "tokenizer_config.json").get("chat_template")
    named = [each.get("template") for each in given] if isinstance(given, list) else [given]
    if any(isinstance(text, str) and text.startswith("\ufeff") for text in named):
        found.append("tokenizer_config.json")
    return found


def _what_is_missing(folder: str) -> str:
    """What transformers needs to read a folder without a tokenizer.json; "" if unknown."""
    names = {*os.listdir(folder)} if os.path.isdir(folder) else set()
    for name in sorted(names):
        if name.endswith((".model", ".tiktoken")) and "tokenizer.json" not in names:
            with open(os.path.join(folder, name), "rb") as file:
                package = "tiktoken" if _TIKTOKEN_LINE.match(file.readline(_REASON)) else "sentencepiece"
            if importlib.util.find_spec(package) is None:
                return f"Install what reads {name}: pip install {package}"
    if {"vocab.json", "vocab.txt"} & names and "tokenizer_class" not in _json_of(folder, "tokenizer_config.json"):
        return 'Say in tokenizer_config.json which class reads these files: {"tokenizer_class": "GPT2Tokenizer"}'
    return ""


_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\s*\Z")
"""A token in base64, and its id."""


def _compare(found: Any, mine: "tokenizers.Tokenizer", template: str | None, special_tokens: dict[str, str]) -> None:
    """Raises `TokenizerError` unless a copy gives transformers' ids and renderings for probes."""
    tokens = [*special_tokens.values(), *found.get_added_vocab()]
    tokens = [*dict.fromkeys(tokens[:_TOKENS] + tokens[-_TOKENS:])]
    compare_ids(found, mine, [*PROBES, *(f"{each}a {each} b\n{each}{each}" for each in tokens)])
    if template is None or not isinstance(found.chat_template, dict):
        return
    for conversation, tools in itertools.product(_CONVERSATIONS, (None, _TOOLS)):
        wanted, given = (_rendered(found, conversation, tools, source) for source in (None, template))
        if wanted != given:
            raise TokenizerError(
                f"the named chat templates of this tokenizer cannot be merged: found {given!r}, wanted {wanted!r}; "
                "name one in the config (input.chat_template)"
            )


def _rendered(found: Any, conversation: Any, tools: Any, chat_template: str | None) -> str | None:
    try:
        text: str = found.apply_chat_template(conversation, tools=tools, chat_template=chat_template, tokenize=False)
        return text
    except Exception:  # a template may raise anything
        return None


def compare_ids(found: Any, mine: "tokenizers.Tokenizer", texts: Iterable[str]) -> None:
    """Raises `TokenizerError` unless a Rust tokenizer gives the same ids as transformers' own object, `found`."""
    for text in texts:
        for special in (False, True):
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
                pairs = itertools.zip_longest(ids, wanted)
                at = next(place for place, (one, other) in enumerate(pairs) if one != other)
                theirs, ours = wanted[at : at + 12], ids[at : at + 12]
                raise TokenizerError(
                    f"transformers and tokenizer.json differ on {text[:40]!r} from the {at + 1}. id on: found {ours}, "
                    f"wanted {theirs}: this tokenizer has a setting that is not known here, and cannot be used; "
                    "tell us about it"
                )


def _keep_offsets(part: Any) -> None:
    """Makes offsets include white space: trimmed ones lose the tokens at the edge of a span. Changes no id."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        if key == "trim_offsets":
            part[key] = False
        elif isinstance(value, dict | list) and (isinstance(key, int) or key in _PARTS):
            _keep_offsets(value)


def _found_in(folder: str) -> str:
    """What a folder without a tokenizer holds: a subfolder with a tokenizer, or its first names."""
    names = sorted(os.listdir(folder))
    for name in names:
        if os.path.isfile(os.path.join(folder, name, "tokenizer.json")):
            return f"one in {os.path.join(folder, name)!r}: did you mean that?"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{', '.join(map(repr, names[:_SHOWN]))}{more}" if names else "nothing in it"


def hub_answers() -> bool:
    """True if the host of the Hugging Face Hub can be resolved. Its client would otherwise retry for a minute."""
    host = urllib.parse.urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


def write(
    source: str, special_tokens: dict[str, str], template: str | None, settings: Mapping[str, Any]
) -> tokenizer_cache.ResolvedTokenizer:
    """Writes the files of a resolved tokenizer to a folder that every process of this machine finds."""
    texts = _files_of(source, special_tokens, template, settings)
    fingerprint: str = json.loads(texts[tokenizer_cache.FACTS_FILE])["fingerprint"]
    return tokenizer_cache.ResolvedTokenizer(
        str(tokenizer_cache.keep(fingerprint, texts)), fingerprint, tokenizer_cache.digest_of(texts)
    )


def _files_of(
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
    texts[tokenizer_cache.FACTS_FILE] = json.dumps(facts, ensure_ascii=False, indent=1) + "\n"
    return {name: text.encode("utf-8", "surrogatepass") for name, text in texts.items()}


def _largest_id(source: Any) -> int:
    """The largest id in a tokenizer.json, added tokens included."""
    known = source["model"]["vocab"]
    ids = known.values() if isinstance(known, dict) else range(len(known))
    return max(itertools.chain(ids, (token["id"] for token in source["added_tokens"])), default=0)


def expected_files(contents: Mapping[str, bytes]) -> dict[str, bytes] | None:
    """The files as `write` would write them; None if they are not the files of a resolved tokenizer."""
    try:
        template, facts = contents.get("chat_template.jinja"), json.loads(contents[tokenizer_cache.FACTS_FILE])
        return _files_of(
            contents["tokenizer.json"].decode("utf-8", "surrogatepass"),
            facts["special_tokens"],
            None if template is None else template.decode("utf-8", "surrogatepass"),
            facts.get("settings", {}),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
