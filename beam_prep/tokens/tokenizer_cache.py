"""The cache of this user's resolved tokenizers: to resolve one with transformers takes two seconds.

A cached tokenizer is used only if everything that it depends on is unchanged: the bytes of the folder's files, the
versions of the libraries that read them, and our own code. The digest of all this names a note in the user's cache
folder, and the note names the resolved files. Their digest is checked whenever they are read.
"""

import atexit
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import platformdirs

from beam_prep.errors import TokenizerError

log = logging.getLogger("beam_prep")

FACTS_FILE = "beam_prep.json"
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", FACTS_FILE)
"""The files of a resolved tokenizer. The template may be missing."""

_LIBRARIES = ("transformers", "tokenizers", "sentencepiece", "tiktoken", "protobuf", "mistral-common", "jinja2")
# The only subfolder of a tokenizer's folder that transformers reads.
BELOW = "additional_chat_templates"
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}
_MOST_BYTES = 256 << 20


class ResolvedTokenizer(NamedTuple):
    """A resolved tokenizer.

    Attributes:
        folder: the folder of its files.
        fingerprint: of the contents: see `Tokenizer`.
        digest: of the bytes: see `digest_of`.
    """

    folder: str
    fingerprint: str
    digest: str


def digest_of(contents: Mapping[str, bytes]) -> str:
    """sha256 of files: their names, sizes and bytes. Far faster to compute than the fingerprint."""
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
    found = {}
    for name in FILES:
        try:
            found[name] = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
    return found


def cache() -> Path:
    """This user's cache folder; if it cannot be used, a temporary folder of this process.

    Raises:
        TokenizerError: neither can be written.
    """
    return usable(Path(platformdirs.user_cache_dir("beam_prep", appauthor=False)))


@functools.cache
def usable(folder: Path) -> Path:
    """The folder, made if needed. If it cannot be written, or if others can write into it: a temporary folder."""
    try:
        if not folder.is_absolute():
            raise OSError(f"the user has no home folder ({folder})")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise OSError(f"{folder} cannot be written")
        found = folder.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise OSError(f"others may have written into {folder}")
        return folder
    except OSError as error:
        advice = "set XDG_CACHE_HOME to a folder of yours"
        log.warning("resolved tokenizers are kept for this run only: %s: %s", error, advice)
    try:
        made = tempfile.TemporaryDirectory(prefix="beam_prep-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _no_folder_error(error) from None
    atexit.register(made.cleanup)
    return Path(made.name)


def bundles() -> Path:
    """The folder of this user's resolved tokenizers: a subfolder for each, named by its fingerprint."""
    return cache() / "tokenizers"


def keep(fingerprint: str, contents: Mapping[str, bytes]) -> Path:
    """Writes a resolved tokenizer's files to a folder that every process of this machine finds, unless they exist.

    Raises:
        TokenizerError: they cannot be written.
    """
    try:
        return put(bundles() / fingerprint, contents)
    except OSError as error:  # a full disk
        raise _no_folder_error(error) from None


def put(folder: Path, contents: Mapping[str, bytes]) -> Path:
    """Writes a tokenizer's files into a folder, and removes other files of `FILES`. Makes the folder if needed.

    A file gets its name only when it is complete, because another process may write the same files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            _write(folder / name, content)
    for name in {*FILES} - {*contents}:  # an old template
        (folder / name).unlink(missing_ok=True)
    return folder


def _write(path: Path, content: bytes) -> None:
    """Writes a file. It gets its name only when it is complete."""
    made = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        made.write_bytes(content)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def _no_folder_error(error: OSError) -> TokenizerError:
    return TokenizerError(f"no folder for resolved tokenizers ({error}): set XDG_CACHE_HOME to one that can be written")


def resolved(folder: str, resolve: Callable[[], ResolvedTokenizer]) -> ResolvedTokenizer:
    """A folder's resolved tokenizer: from the cache, otherwise from `resolve`.

    Args:
        folder: the tokenizer's folder, or a name on the Hub, which is never cached.
        resolve: resolves it, and writes the files into their folder.
    """
    # No cache if transformers is imported: other classes may be registered, and the import is the slow part.
    if "transformers" in sys.modules:
        return resolve()
    return _remembered(lambda: _state_of(folder), resolve)


def derived(key: str, derive: Callable[[], ResolvedTokenizer]) -> ResolvedTokenizer:
    """A tokenizer made from a resolved one: from the cache, otherwise from `derive`.

    Args:
        key: identifies the tokenizer and the change.
        derive: makes it, and writes the files into their folder.
    """
    return _remembered(lambda: [key], derive)


def _remembered(depends_on: Callable[[], list[str] | None], make: Callable[[], ResolvedTokenizer]) -> ResolvedTokenizer:
    """The tokenizer that a note names; otherwise makes it.

    Args:
        depends_on: what the result depends on, apart from our own code; None: on more than can be compared.
        make: makes it, and writes its files.
    """
    before = depends_on()
    if before is None:
        return make()
    state = hashlib.sha256(Path(__file__).with_name("resolver.py").read_bytes())
    state.update("\0".join([sys.version, *before]).encode("utf-8", "surrogatepass"))
    note = cache() / "resolved" / f"{state.hexdigest()}.json"
    try:
        kept = json.loads(note.read_bytes())
        known = ResolvedTokenizer(str(bundles() / kept["fingerprint"]), kept["fingerprint"], kept["digest"])
        if digest_of(read(Path(known.folder))) == known.digest:
            return known
    except (OSError, ValueError, KeyError, TypeError):  # there is no note, or it is damaged
        pass
    known = make()
    if before == depends_on():  # no file was changed meanwhile
        with contextlib.suppress(OSError):  # a full disk: the next run resolves again
            note.parent.mkdir(parents=True, exist_ok=True)
            _write(note, json.dumps({"fingerprint": known.fingerprint, "digest": known.digest}).encode())
    return known


def _state_of(folder: str) -> list[str] | None:
    """Versions of libraries, and a digest of a folder's files; None if the result may depend on more."""
    if not os.path.isdir(folder):
        return None  # a name on the Hub may be another tokenizer tomorrow
    try:
        places = [place for place in (Path(folder), Path(folder, BELOW)) if place.is_dir()]
        files = sorted(path for place in places for path in place.iterdir() if path.is_file())
        files = [path for path in files if path.suffix not in WEIGHTS]
        if sum(path.stat().st_size for path in files) > _MOST_BYTES:
            return None  # reading them takes longer than resolving
        contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    except OSError:
        return None
    return [*(f"{name} {version_of(name)}" for name in _LIBRARIES), digest_of(contents)]


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
