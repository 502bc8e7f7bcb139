"""Folder names for domains: never outside the output, and never shared by two domains on any file system."""

import hashlib
import re

_SAFE = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,59}")
_LOOKS_HASHED = re.compile(r".*-[0-9a-f]{16}")
_TAKEN = {
    "rejects",
    "tokenizer",
    "latest",
    "latest.json",
    "manifest.json",
    "run.json",
    "report.html",
    "features.json",
    "dataset_dict.json",
}
_TAKEN_IN_SPLITS = {"dataset_info.json", "state.json"}
"""With splits, files of `datasets` lie beside the folders of domains."""


def folder_of(domain: str, in_splits: bool = False) -> str:
    """The folder of a domain: its name if that is plain lower case, else a slug and a hash of the name.

    Upper case gets a hash, too: some file systems ignore case.

    Args:
        domain: its name.
        in_splits: the folder lies in the folder of a split.
    """
    if _SAFE.fullmatch(domain) and not (
        domain in _TAKEN
        or (in_splits and domain in _TAKEN_IN_SPLITS)
        or domain.endswith(".")
        or domain.startswith("shard_")
        or _LOOKS_HASHED.fullmatch(domain)
    ):
        return domain
    slug = re.sub(r"[^a-z0-9_]+", "_", domain.lower())[:40].strip("_") or "domain"
    digest = hashlib.sha256(domain.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{slug}-{digest}"


def part_of(split: str | None, domain: str) -> str:
    """The name of a part in the plan: the rows of a domain in a split."""
    return domain if split is None else f"{split}/{domain}"
