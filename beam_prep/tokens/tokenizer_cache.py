"""The cache of this user's resolved tokenizers: transformers takes two seconds for the same answer.

An answer is used again only if everything it depends on is the same: the bytes of the folder's files, the versions of
the libraries that read them, and our own code. The resolved files are compared with their digest whenever they are
read. They are in a folder that nobody else can write to; files anywhere else are not trusted.
"""

import atexit
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import stat
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
"""The files of a resolved tokenizer; it need not have a template."""

_LIBRARIES = ("transformers", "tokenizers", "sentencepiece", "tiktoken", "protobuf", "mistral-common", "jinja2")
# The one folder below a tokenizer's that transformers looks into.
BELOW = "additional_chat_templates"
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}
_MOST_BYTES = 256 << 20


class ResolvedTokenizer(NamedTuple):
    """A resolved tokenizer.

    Attributes:
        folder: where its files are.
        fingerprint: of their contents: see `Tokenizer`.
        digest: of their bytes: see `digest_of`.
    """

    folder: str
    fingerprint: str
    digest: str


def digest_of(contents: Mapping[str, bytes]) -> str:
    """sha256 of files: their names, sizes and bytes. Far faster than computing the fingerprint."""
    found = hashlib.sha256()
    for name, content in sorted(contents.items()):
        found.update(f"{name} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def read(folder: Path) -> dict[str, bytes]:
    """Those of `FILES` that are in a folder, by name.

    Raises:
        OSError: one is there, and cannot be read.
    """
    found = {}
    for name in FILES:
        try:
            found[name] = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
    return found


def cache() -> Path:
    """The folder of this user, mode 0700, for what is kept between runs.

    Where it cannot be made, or others can write into it, a new temporary folder, which is removed with the process.

    Raises:
        TokenizerError: neither can be written.
    """
    wanted = _wanted()
    problem = _problem(wanted)
    if problem is None:
        return wanted
    _warn_once(f"resolved tokenizers are kept for this run only: {problem}")
    return _folder_of_process()


def _wanted() -> Path:
    return Path(platformdirs.user_cache_dir("beam_prep", appauthor=False))


def bundles() -> Path:
    """The folder of this user's resolved tokenizers: one folder each, named by its fingerprint."""
    return cache() / "tokenizers"


def keep(fingerprint: str, contents: Mapping[str, bytes]) -> Path:
    """Writes a resolved tokenizer's files to where every process of this machine finds them, if they are not there.

    Raises:
        TokenizerError: they cannot be written.
    """
    try:
        return put(bundles() / fingerprint, contents)
    except OSError as error:  # a full disk
        _warn_once(f"resolved tokenizers are kept for this run only: {error}")
    try:
        return put(_folder_of_process() / "tokenizers" / fingerprint, contents)
    except OSError as error:
        raise _no_folder_error(error) from None


def put(folder: Path, contents: Mapping[str, bytes]) -> Path:
    """Writes a tokenizer's files, and no others of `FILES`, into a folder, which is made if need be.

    Each gets its name only when it is complete: another process may write the same files at the same time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        try:
            same = (folder / name).read_bytes() == content
        except OSError:
            same = False
        if same:
            continue
        made = folder / f"{name}.{uuid.uuid4().hex}"
        try:
            made.write_bytes(content)
            made.replace(folder / name)
        finally:
            made.unlink(missing_ok=True)
    for name in {*FILES} - {*contents}:  # a template that it does not have
        (folder / name).unlink(missing_ok=True)
    return folder


def _problem(folder: Path) -> str | None:
    """The reason why others than this user can write to a folder, which is made if need be; None: they cannot."""
    if not folder.is_absolute():
        return f"the user has no home folder ({folder}): set XDG_CACHE_HOME to a folder of yours"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISLNK(found.st_mode):
            return f"{folder} is a link: remove it, or set XDG_CACHE_HOME to another folder of yours"
        if found.st_uid != os.geteuid():
            return f"{folder} belongs to user {found.st_uid}, you are {os.geteuid()}: set XDG_CACHE_HOME"
        if found.st_mode & 0o022:
            return f"others may have written into {folder} (mode {found.st_mode & 0o777:o}): type: rm -r '{folder}'"
        if found.st_mode & 0o077:
            folder.chmod(0o700)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            return f"{folder} cannot be written: set XDG_CACHE_HOME to a folder of yours"
    except OSError as error:
        return f"{error}: set XDG_CACHE_HOME to a folder of yours"
    return None


_made: list[Path] = []  # folders of this process, the last one in use


def _folder_of_process() -> Path:
    if not _made or _problem(_made[-1]) is not None:
        try:
            _made.append(Path(tempfile.mkdtemp(prefix="beam_prep-")))
        except OSError as error:
            raise _no_folder_error(error) from None
        atexit.register(_remove, _made[-1], os.getpid())
    return _made[-1]


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not a fork of the process
        shutil.rmtree(folder, ignore_errors=True)


def _no_folder_error(error: OSError) -> TokenizerError:
    return TokenizerError(f"no folder for resolved tokenizers ({error}): set XDG_CACHE_HOME to one that can be written")


@functools.cache
def _warn_once(problem: str) -> None:
    """Warns once a process."""
    log.warning("%s", problem)


def resolved(folder: str, resolve: Callable[[], ResolvedTokenizer]) -> ResolvedTokenizer:
    """A folder's resolved tokenizer: from the cache, or else what `resolve` gives.

    Args:
        folder: the tokenizer's folder, or a name on the Hub, which is never cached.
        resolve: resolves it, and writes the files into their folder.
    """
    # Where transformers is imported already, other classes may be registered with it; and the import is what is slow.
    note = None if "transformers" in sys.modules else _note(folder)
    if note is not None and (known := _recall(note)) is not None:
        return known
    known = resolve()
    if note is not None and note == _note(folder):  # nobody changed the files meanwhile
        _remember(note, known)
    return known


def derived(key: str, derive: Callable[[], ResolvedTokenizer]) -> ResolvedTokenizer:
    """What is made of a resolved tokenizer: from the cache, or else what `derive` gives.

    Args:
        key: says of which tokenizer, and what.
        derive: makes it, and writes the files into their folder.
    """
    try:
        state = hashlib.sha256(Path(__file__).with_name("resolver.py").read_bytes())
    except OSError:
        return derive()
    state.update(f"{sys.version}\0{key}".encode("utf-8", "surrogatepass"))
    note = cache() / "resolved" / f"{state.hexdigest()}.json"
    if (known := _recall(note)) is None:
        known = derive()
        _remember(note, known)
    return known


def _note(folder: str) -> Path | None:
    """The file for the answer for a folder; None if the answer may depend on more than is compared here."""
    if not os.path.isdir(folder):
        return None  # a name on the Hub may be another tokenizer tomorrow
    state = hashlib.sha256(sys.version.encode())
    try:
        state.update(Path(__file__).with_name("resolver.py").read_bytes())
        for name in _LIBRARIES:
            state.update(f"{name} {_version(name)}\n".encode())
        places = [place for place in (Path(folder), Path(folder, BELOW)) if place.is_dir()]
        files = sorted(path for place in places for path in place.iterdir() if path.is_file())
        files = [path for path in files if path.suffix not in WEIGHTS]
        if sum(path.stat().st_size for path in files) > _MOST_BYTES:
            return None  # reading them takes longer than resolving
        for path in files:
            state.update(f"{str(path.relative_to(folder))!r} {_digest(path)}\n".encode())
    except OSError:
        return None
    return cache() / "resolved" / f"{state.hexdigest()}.json"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _recall(note: Path) -> ResolvedTokenizer | None:
    try:
        if note.lstat().st_uid != os.geteuid():
            return None
        kept = json.loads(note.read_bytes())
        known = ResolvedTokenizer(str(bundles() / kept["fingerprint"]), kept["fingerprint"], kept["digest"])
        return known if digest_of(read(Path(known.folder))) == known.digest else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(note: Path, known: ResolvedTokenizer) -> None:
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        made = note.with_suffix(f".{uuid.uuid4().hex}")
        made.write_text(json.dumps({"fingerprint": known.fingerprint, "digest": known.digest}))
        made.replace(note)
    except OSError:  # a full disk: the next run resolves again
        return
