"""A shard in one format: its rows and tokens against the manifest."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from beam_prep.core.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS
from beam_prep.formats.manifest import MANIFEST, ShardReceipt, count_tokens


def shard_problems(
    folder: Path, name: str, columns: Sequence[Column], shard: ShardReceipt, shards: int, damaged: bool
) -> Iterator[str]:
    """Compares the rows and tokens of a shard, in one format, with the manifest.

    Args:
        folder: the folder of the domain.
        name: the format.
        columns: the columns of every row.
        shard: the shard, as the manifest has it.
        shards: the number of shards of the domain.
        damaged: a file of the shard differs, which has been reported: then it is no news that it cannot be read.
    """
    if name not in FORMATS:
        yield "this version cannot read the format: pip install --upgrade beam-prep"
        return
    found = {"tokens": dict.fromkeys(shard.tokens, 0), "trained": dict.fromkeys(shard.trained, 0)}
    untrained = 0
    try:
        reader = FORMATS[name].read(folder, columns, shard.shard, shards)
        for index in range(rows := len(reader)):
            counted = count_tokens(columns, reader.row(index))
            untrained += not all(counted["trained"].values())
            for kind, counts in counted.items():
                for column, count in counts.items():
                    found[kind][column] = found[kind].get(column, 0) + count
    except (FormatError, ImportError) as error:
        if not damaged:
            yield str(error)
        return
    if rows != shard.rows:
        yield f"found {rows} rows, {MANIFEST} says {shard.rows}"
    if shard.packing is not None and untrained != (untrained_listed := shard.packing.get("packs_untrained", untrained)):
        yield f"found {untrained} packed rows without a trained token, {MANIFEST} says {untrained_listed}"
    for kind, listed in (("tokens", shard.tokens), ("trained", shard.trained)):
        for column, count in found[kind].items():
            if count != listed.get(column):
                yield f"found {kind} {count} of {column!r}, {MANIFEST} says {listed.get(column)}"
