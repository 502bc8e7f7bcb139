"""Estimates the disk space of a run from the first records of its input."""

import io
import os
import shutil
from collections.abc import Iterable, Sequence

from rich import filesize

from beam_prep import recipe
from beam_prep.config import PipelineConfig
from beam_prep.data.block import InputFile
from beam_prep.formats import FORMATS
from beam_prep.formats.cached_block import encode_block
from beam_prep.sample import prepare
from beam_prep.shards.layout import Layout
from beam_prep.storage.splits import first_records
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.tokenizer import Tokenizer

AMPLE = 20
"""This many times the size of the input are enough for any run: with more space, nothing is estimated."""


def sizes(
    config: PipelineConfig, tokenizer: Tokenizer, inputs: Sequence[InputFile], max_reject_chars: int
) -> tuple[float, float]:
    """(bytes in the token cache, bytes in the output) for each byte of input, estimated from the first kept records."""
    for number, source in enumerate(inputs):
        records = first_records(source, number)
        if records is None:
            continue
        size = records.origin.bytes
        batch, layout = prepare(records, config, tokenizer), recipe.layout(config, tokenizer)
        if not len(batch):
            continue
        _, files = encode_block(batch, layout.tokens(batch), max_reject_chars, "first")
        cached = sum(len(part) for parts in files.values() for part in parts)
        return cached / size, _written(batch, config.output.storage_format, layout) / size
    return 0.0, 0.0


def _written(batch: Batch, formats: Sequence[str], layout: Layout) -> int:
    """Bytes of a block's rows in an output."""
    columns = layout.columns(tuple(batch.schema.values()))
    file = _Kept()
    writers = [FORMATS[name].writer(lambda _: file, columns, 0, 1) for name in formats]
    for rows, _ in layout.rows([({name: batch[name] for name in batch.schema}, None)], columns):
        for writer in writers:
            writer.write(rows)
    for writer in writers:
        writer.close()
    return file.tell()


class _Kept(io.BytesIO):
    """A file that still knows its size after its writer has closed it."""

    def close(self) -> None:
        """Does nothing."""


def lacks_room(needs: Iterable[tuple[str, str, float]]) -> list[str]:
    """A warning for each disk with less free space than needed.

    Args:
        needs: (folder, what is written there, bytes). The same thing on the same disk is counted once.
    """
    disks: dict[int, dict[str, tuple[str, float]]] = {}
    for folder, what, size in needs:
        disks.setdefault(os.stat(_existing(folder)).st_dev, {}).setdefault(what, (folder, size))
    lines = []
    for wanted in disks.values():
        need, free = sum(size for _, size in wanted.values()), free_bytes(next(iter(wanted.values()))[0])
        if need > free:
            listed = " and ".join(f"{what} in {folder}" for what, (folder, size) in wanted.items() if size)
            lines.append(
                f"{listed}: about {filesize.decimal(int(need))} are needed, by the first records, and "
                f"{filesize.decimal(free)} are free: make room, or give folders on other disks (--cache_dir, "
                "--staging, -o)"
            )
    return lines


def free_bytes(folder: str) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: str) -> str:
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder
