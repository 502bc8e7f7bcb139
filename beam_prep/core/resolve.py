"""What resolving a tokenizer's folder gave the last time: transformers takes two seconds for the same answer.

An answer is used again only where all that it follows from is the same: the bytes of the folder's files, the versions
of the libraries that read them, and our own code that asks. The files that it stands for are compared with their
digests, too.
"""

import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

_LIBRARIES = ("transformers", "tokenizers", "sentencepiece", "tiktoken", "protobuf", "mistral-common", "jinja2")
# The one folder below a tokenizer's that transformers looks into.
BELOW = "additional_chat_templates"
WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}
_MOST_BYTES = 256 << 20


def bundles() -> Path:
    """The folder of this user's resolved tokenizers: one folder each, named by its fingerprint."""
    return Path(tempfile.gettempdir()) / f"beam_prep-{os.getuid()}" / "tokenizers"


def remembered(folder: str, ask: Callable[[], tuple[str, Sequence[str]]]) -> str:
    """The fingerprint of a folder's resolved tokenizer: the one that is remembered, or what `ask` gives.

    Args:
        folder: the tokenizer's folder, or another name for it, for which nothing is remembered.
        ask: resolves it; gives the fingerprint and the names of the files in its folder of `bundles`.
    """
    # transformers may have been told of other classes, where it is in use; and to import it is what takes the time.
    note = None if "transformers" in sys.modules else _note(folder)
    if note is not None and (known := _recall(note)) is not None:
        return known
    fingerprint, names = ask()
    if note is not None and note == _note(folder):  # nobody changed the files meanwhile
        _remember(note, fingerprint, names)
    return fingerprint


def _note(folder: str) -> Path | None:
    """Where the answer for a folder is noted. None: it may follow from more than what is looked at here."""
    if not os.path.isdir(folder):
        return None  # a name on the Hub stands for what the Hub says today
    state = hashlib.sha256(sys.version.encode())
    try:
        state.update(Path(__file__).with_name("tokenizer.py").read_bytes())
        for name in _LIBRARIES:
            state.update(f"{name} {_version(name)}\n".encode())
        places = [place for place in (Path(folder), Path(folder, BELOW)) if place.is_dir()]
        files = sorted(path for place in places for path in place.iterdir() if path.is_file())
        files = [path for path in files if path.suffix not in WEIGHTS]
        if sum(path.stat().st_size for path in files) > _MOST_BYTES:
            return None  # to read them takes longer than to ask
        for path in files:
            state.update(f"{str(path.relative_to(folder))!r} {_digest(path)}\n".encode())
    except OSError:
        return None
    return bundles().parent / "resolved" / f"{state.hexdigest()}.json"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _recall(note: Path) -> str | None:
    try:
        kept = json.loads(note.read_bytes())
        fingerprint: str = kept["fingerprint"]
        bundle = bundles() / fingerprint
        whole = all(_digest(bundle / name) == digest for name, digest in kept["files"].items())
        # Folders for temporary files belong to all.
        mine = all(path.stat().st_uid == os.getuid() for path in (note, bundle))
    except (OSError, ValueError, KeyError):
        return None
    return fingerprint if whole and mine else None


def _remember(note: Path, fingerprint: str, names: Sequence[str]) -> None:
    try:
        files = {name: _digest(bundles() / fingerprint / name) for name in names}
        note.parent.mkdir(parents=True, exist_ok=True)
        made = note.with_suffix(f".{uuid.uuid4().hex}")
        made.write_text(json.dumps({"fingerprint": fingerprint, "files": files}))
        made.replace(note)
    except OSError:  # a full disk, a folder of somebody else: the next run asks again
        return
