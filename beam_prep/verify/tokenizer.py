"""The tokenizer in an output: whether it is the one that made it."""

from collections.abc import Iterator, Mapping
from typing import Any

from beam_prep.core.encoding import tokenizer_cache
from beam_prep.core.encoding.resolver import fingerprint_of
from beam_prep.formats.manifest import MANIFEST, TOKENIZER
from beam_prep.verify.files import OutputFiles


def tokenizer_problems(files: OutputFiles, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Compares the tokenizer in the output with the one that made it."""
    names = [file["path"] for file in manifest["files"] if file["path"].startswith(f"{TOKENIZER}/")]
    if not names or "tokenizer" not in manifest:  # a chain written by hand
        return
    wanted = manifest["tokenizer"]["fingerprint"]
    with files.local(names) as folder:
        try:
            found = fingerprint_of(tokenizer_cache.read(folder / TOKENIZER))
        except OSError:
            found = None
    if found is None:
        yield f"{TOKENIZER}: found files that are not a tokenizer's, {MANIFEST} says fingerprint {wanted}"
    elif found != wanted:
        yield f"{TOKENIZER}: found fingerprint {found}, {MANIFEST} says {wanted}"
