"""The files that describe shards to other libraries: whether they say what the manifest says."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_prep.core.data.schema import Column
from beam_prep.formats.arrow import INFO, STATE, Arrow, dataset_files
from beam_prep.formats.manifest import FEATURES, MANIFEST, ShardReceipt, folder_of_shard, receipts_of
from beam_prep.formats.mds import INDEX, index
from beam_prep.formats.tfrecord import features


def described_problems(
    folder: Path, name: str, manifest: Mapping[str, Any], columns: Sequence[Column]
) -> Iterator[str]:
    """Compares `features.json`, `dataset_dict.json` and every `index.json`; other files are none of these."""
    if name == FEATURES:
        yield from _compared(folder, name, features(columns))
    elif "arrow" in manifest["formats"] and name in (
        wanted := dataset_files(columns, manifest["domains"], receipts_of(manifest))
    ):
        yield from _compared(folder, name, wanted[name])
    elif name.endswith(f"/{INDEX}") and "mds" in manifest["formats"]:
        place = name.removesuffix(f"/{INDEX}")
        shards = [shard for shard in manifest["shards"] if _folder(manifest, shard) == place]
        try:
            wanted_index = index(columns, place, receipts_of({"shards": shards}))
        except KeyError as error:
            yield f"{MANIFEST}: does not list {error.args[0]}, which {name} is about"
            return
        yield from _compared(folder, name, wanted_index)


def unlisted(manifest: Mapping[str, Any], shards: Sequence[ShardReceipt], columns: Sequence[Column]) -> Iterator[str]:
    """What describes an output to `datasets`, and the manifest does not list."""
    if "arrow" in manifest["formats"]:
        listed = {file["path"] for file in manifest["files"]}
        for name in dataset_files(columns, manifest["domains"], shards).keys() - listed:
            yield f"{MANIFEST}: does not list {name}, which describes the shards to other libraries"


def _folder(manifest: Mapping[str, Any], shard: Mapping[str, Any]) -> str:
    return folder_of_shard(manifest, shard["domain"], shard.get("split"))


def arrow_problems(folder: Path, place: str, columns: Sequence[Column], shards: int) -> Iterator[str]:
    """Compares what `datasets.load_from_disk` reads of a domain before its shards."""
    wanted: dict[str, _Kept] = {}

    def kept(name: str) -> Any:
        wanted[name] = _Kept()
        return wanted[name]

    Arrow().writer(kept, columns, 0, shards).close()  # the writer describes; without rows it is soon done
    for name in (STATE, INFO):
        yield from _compared(folder, f"{place}/{name}", json.loads(wanted[name].text))


class _Kept(io.BytesIO):
    text = b""

    def close(self) -> None:
        self.text = self.getvalue()
        super().close()


def _compared(folder: Path, name: str, wanted: Any) -> Iterator[str]:
    try:
        found = json.loads((folder / name).read_bytes())
    except (OSError, ValueError) as error:
        yield f"{name}: cannot be read: {error}"
        return
    if found != wanted:
        parts = [
            key
            for key in {**wanted, **(found if isinstance(found, dict) else {})}
            if _at(found, key) != wanted.get(key)
        ]
        key = parts[0] if parts else ""
        yield f"{name}: found {key!r}: {_at(found, key)!r}, {MANIFEST} gives {wanted.get(key)!r}"


def _at(found: Any, key: str) -> Any:
    return found.get(key) if isinstance(found, dict) else found
