"""ReadJSONL: files as they lie on disks, whole and damaged."""

import bz2
import gzip
import hashlib
import io
import json
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import zstandard
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to

import beam_prep as bp
from beam_prep.data.block import InputFile
from beam_prep.errors import InputError
from beam_prep.reading.records import Records, parse, read_blocks
from beam_prep.reading.source import SHARED_BYTES
from beam_prep.storage import files as _files
from beam_prep.storage.files import list_inputs, open_input
from beam_prep.storage.inputs import pack_files, read_split, split_file, split_files
from beam_prep.transforms.steps import ReadJSONL

BLOCK = 65536
CONFIG = {"input": {"sections": [{"field": "text", "action": "train"}]}, "preprocessing": {"min_chars": 1}}


def lines(count: int, width: int = 200) -> bytes:
    """Different lines, and a bad and a blank one among them."""
    rows = [json.dumps({"n": n, "text": hashlib.sha256(b"%d" % n).hexdigest() * (width // 64)}) for n in range(count)]
    rows[count // 2 : count // 2] = ["not json", ""]
    return "".join(row + "\n" for row in rows).encode()


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zst}


def halves(pack: Callable[[bytes], bytes], data: bytes) -> bytes:
    """Two members (streams, frames), the border within a line, and an empty one between them."""
    middle = len(data) // 2 + 7
    return pack(data[:middle]) + pack(b"") + pack(data[middle:])


def content(block: Records) -> tuple[Any, ...]:
    """All that a block says of its file's content."""
    ledger = block.ledger
    rows = hashlib.sha256(json.dumps(block.rows).encode()).hexdigest()
    return (
        block.origin.start,
        block.origin.skip,
        block.origin.size,
        block.origin.digest,
        block.line.tolist(),
        rows,
        ledger.starts.tolist(),
        ledger.outcomes,
        ledger.messages,
    )


def blocks(path: Path, block_bytes: int = BLOCK) -> list[Records]:
    """The blocks of a file, without a pipeline."""
    (source,) = list_inputs([str(path)])
    return [block for split in split_file((0, source), block_bytes) for block in read_split(split, block_bytes)]


# --- what is read


def test_compressed_files_give_the_blocks_of_the_plain_one(tmp_path: Path) -> None:
    data = lines(1200)
    assert len(data) > 3 * BLOCK
    files = {"plain.jsonl": data, "NAMED.GZ": gzip.compress(data)}
    files |= {f"one.jsonl{ending}": pack(data) for ending, pack in PACK.items()}
    files["padded.jsonl.gz"] = gzip.compress(data) + b"\0" * 512  # no damage
    files |= {f"many.jsonl{ending}": halves(pack, data) for ending, pack in PACK.items()}
    for name, packed in files.items():
        (tmp_path / name).write_bytes(packed)
    raw = list(read_blocks(io.BytesIO(data), 0, -1, BLOCK))
    wanted = [content(parse(block, block.origin(0, InputFile("", 0, 0.0), BLOCK))) for block in raw]
    assert sum(len(block[4]) for block in wanted) == 1200
    with test_pipeline.TestPipeline(runner="FnApiRunner") as pipeline:
        found = pipeline | ReadJSONL([str(tmp_path / name) for name in files], BLOCK)
        assert_that(
            found | beam.Map(lambda block: (block.origin.source.path, content(block))),
            equal_to([(str(tmp_path / name), block) for name in files for block in wanted]),
        )


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("workers", [3, 40])
def test_workers_that_share_a_compressed_file_read_each_block_once(ending: str, workers: int, tmp_path: Path) -> None:
    path = tmp_path / f"one.jsonl{ending}"
    path.write_bytes(halves(PACK[ending], lines(1200)))
    (source,) = list_inputs([str(path)])
    large = replace(source, size=SHARED_BYTES)
    splits = [*split_files(b"", pack_files([large]), BLOCK, workers)]
    assert len(splits) == (1 if ending == ".bz2" else workers)  # bzip2 takes as long as the records do
    found = sorted(
        (block for split in splits for block in read_split(replace(split, source=source), BLOCK)),
        key=lambda each: each.origin.start,
    )
    assert [content(block) for block in found] == [content(block) for block in blocks(path)]
    assert sum(block.origin.stored for block in found) == source.size


# --- files that change


def rewrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    os.utime(path, (1, 1))


def test_a_file_that_changes_after_it_was_listed_ends_the_run(tmp_path: Path, tokenizer_path: str) -> None:
    path = tmp_path / "a.jsonl.gz"
    rewrite(path, gzip.compress(b'{"text":"one"}\n'))
    job = bp.Pipeline(bp.PipelineConfig.from_dict(CONFIG), [str(path)], tmp_path / "out", tokenizer_path)
    path.write_bytes(gzip.compress(b'{"text":"two"}\n'))
    with pytest.raises(InputError, match=r"'.*/a.jsonl.gz' changed while the job ran: run again"):
        job.run(["--runner=FnApiRunner"])
    assert not (tmp_path / "out").exists()
    # Or before it is read.
    (source,) = list_inputs([str(path)])
    for change in (gzip.compress(b""), None):
        path.unlink() if change is None else path.write_bytes(change)
        with pytest.raises(InputError, match="No such file" if change is None else "changed while"):
            open_input(source).__enter__()


def test_a_file_that_ends_before_its_split_does_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n' * 20_000)
    (source,) = list_inputs([str(path)])
    path.write_bytes(b'{"a":1}\n' * 100)
    monkeypatch.setattr(_files, "file_stat", lambda *path: (source.size, source.updated))  # as a lagging store would
    for split in split_file((0, source), BLOCK):
        with pytest.raises(InputError, match=r"'.*a\.jsonl' became shorter"):
            list(read_split(split, BLOCK))


# --- damaged files

GOOD = lines(400)
HALF = GOOD[: len(GOOD) // 2]


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


DAMAGED = {
    "cut.jsonl.gz": gzip.compress(GOOD)[:-1000],
    "garbage behind.jsonl.gz": gzip.compress(GOOD) + b"garbage",
    "plain.jsonl.gz": GOOD,
    "garbage behind.jsonl.bz2": bz2.compress(GOOD) + b"garbage",
    # Python's own reader takes what follows for padding, and loses it silently.
    "second stream, its magic.jsonl.bz2": bz2.compress(HALF) + flip(bz2.compress(GOOD), 1),
    "garbage behind.jsonl.zst": zst(GOOD) + b"garbage",
    "gzip.jsonl": gzip.compress(GOOD),
    "bzip2.jsonl": bz2.compress(GOOD),
    "zstd.jsonl": zst(GOOD),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_error_that_names_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(DAMAGED[name])
    with pytest.raises(InputError) as caught:
        blocks(path)
    message = str(caught.value)
    assert message.startswith(repr(str(path)))
    assert "\n" not in message
    kind = _files.compression_of(path.name)
    assert (f"cannot be read as {kind} (" if kind else "is compressed, but its name does not end in ") in message


def test_a_frame_with_a_long_window_is_said_to_need_a_command(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd\0\xa8\x11\0\0{}")  # a window of 2 GB
    with pytest.raises(InputError, match=r"too much memory.*: type: zstd -dc --long=31 FILE > NEW$"):
        blocks(tmp_path / "x.jsonl.zst")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zst])
def test_no_cut_and_no_flipped_bit_is_taken_for_the_end(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = lines(6)
    packed = pack(data) + pack(data)
    member = len(pack(data))
    kind = {gzip.compress: "gzip", bz2.compress: "bzip2", zst: "zstd"}[pack]

    def read(damaged: bytes) -> bytes | None:
        stream = _files.Input(InputFile("x", len(damaged), 0.0, kind), io.BytesIO(damaged))
        try:
            return b"".join(iter(lambda: stream.read(100), b""))
        except InputError:
            return None

    assert read(packed) == data + data
    # A file that ends with its first member is whole; all others are not.
    assert [size for size in range(1, len(packed)) if read(packed[:size]) is not None] == [member]
    assert {read(flip(packed, place)) for place in range(len(packed))} <= {None, data + data}
    assert read(flip(packed, member + len(packed) // 4)) is None


# --- how much is held


@pytest.mark.parametrize(("ending", "megabytes"), [(".gz", 60), (".bz2", 6), (".zst", 60)])
def test_memory_does_not_grow_with_a_compressed_file(ending: str, megabytes: int, tmp_path: Path) -> None:
    line = b'{"text":"' + b"x" * 489 + b'"}\n'
    assert len(line) == 501
    count = megabytes * 2000
    pack = {".gz": lambda data: gzip.compress(data, 1), ".bz2": bz2.compress, ".zst": zst}[ending]
    (tmp_path / f"a{ending}").write_bytes(pack(line * count))
    (source,) = list_inputs([str(tmp_path / f"a{ending}")])
    found = size = 0
    tracemalloc.start()
    try:
        with open_input(source) as stream:
            for raw in read_blocks(stream, 0, -1, BLOCK):
                found += raw.data.count(b"\n")
                size += raw.size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found, size) == (count, count * len(line))
    assert peak < 16 * BLOCK


class _Counted(io.BytesIO):
    """Counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def test_a_line_of_50_mb_is_read_in_linear_time() -> None:
    line = b'{"text":"' + b"x" * 50_000_000 + b'"}\n'
    data = b'{"a":1}\n' + line + b'{"b":2}\n'
    # As a plain file: the split where it begins reads it all, at most twice as far; every other split reads itself.
    rows = 0
    stream = _Counted(data)
    for start in range(0, len(data), BLOCK):
        stream.seek(max(0, start - 1))
        for raw in read_blocks(stream, start, min(start + BLOCK, len(data)), BLOCK):
            rows += raw.data.count(b"\n")
    assert rows == 3
    assert stream.count < 3 * len(data)


def test_the_graph_of_a_job_of_many_files_is_small() -> None:
    """Dataflow takes 10 MB: 100,000 files must fit in, each with a checksum that no compression makes smaller."""
    files = [
        InputFile(
            f"gs://bucket/corpus/2026/part-{number:06d}.jsonl-{hashlib.md5(b'%d' % number).hexdigest()}", 10**8, 1.7e9
        )
        for number in range(5_000)
    ]
    pipeline = beam.Pipeline()
    pipeline | ReadJSONL(files)
    assert pipeline.to_runner_api().ByteSize() / 5_000 < 60


def test_empty_files_have_one_empty_block(tmp_path: Path) -> None:
    """And names may be odd."""
    names = ["ünï 字.jsonl".encode(), b"[a]?*.gz", b"new\nline.bz2", b"caf\xe9.zst", b"a b ' \" & $(x) %.jsonl"]
    paths = [os.path.join(tmp_path, os.fsdecode(name)) for name in names]
    for path in paths:
        Path(path).write_bytes(PACK.get(Path(path).suffix, bytes)(b""))
    with test_pipeline.TestPipeline(runner="FnApiRunner") as pipeline:
        found = pipeline | ReadJSONL(paths)
        summary = found | beam.Map(lambda block: (block.origin.file, block.origin.size, len(block.ledger.starts)))
        assert_that(summary, equal_to([(file, 0, 0) for file in range(len(paths))]))
