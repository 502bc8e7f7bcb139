"""`tfrecord`, read back by TensorFlow itself, and `array_record`, by grain; their records are those of protobuf."""

import json
import os
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats.tfrecord import decode_example, encode_examples, features
from tests.conftest import Patch
from tests.formats.shards import ALL, MASK, SEQUENCE, joined, plain, random_rows, read_as, rows_of, sft, write_as

RESPONSES = Column("responses", "int32", 2, "ids")

write, read = partial(write_as, "tfrecord"), partial(read_as, "tfrecord")


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def payloads(data: bytes) -> list[bytes]:
    """The records of a file by their lengths alone."""
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        found.append(data[at + 12 : at + 12 + size])
        at += size + 16
    return found


# TensorFlow reads it.


def parsed(tf: Any, path: Path, columns: Sequence[Column]) -> dict[str, Any]:
    """All rows by TensorFlow's own reader, with the lines of the format's docstring."""
    described = json.loads(json.dumps(features(columns)))
    spec = {
        key: tf.io.RaggedFeature(
            tf.as_dtype(feature["type"]),
            value_key=key,
            partitions=[tf.io.RaggedFeature.RowLengths(feature["lengths"])] if "lengths" in feature else [],
            row_splits_dtype=tf.int64,
        )
        for key, feature in described.items()
    }
    rows = tf.data.TFRecordDataset(str(path)).batch(1000).map(lambda batch: tf.io.parse_example(batch, spec))
    (batch,) = list(rows)
    return {key: value.to_list() for key, value in batch.items()}


# The bytes are protobuf's.


def by_protobuf(tf: Any, columns: Sequence[Column], data: dict[str, Ragged], row: int) -> bytes:
    """One row, serialised by protobuf: feature by feature, in the order of the keys.

    Features that follow each other are one message `Features`, says protobuf's encoding ("Last One Wins"). All at once
    would be the same, but for upb's order of a key and its own head, as in "responses/lengths" and "responses".
    """
    features: dict[str, Any] = {}
    for column in columns:
        values = data[column.name][row]
        flat = values.flat if isinstance(values, Ragged) else values
        if np.dtype(column.dtype).kind == "f":
            features[column.name] = tf.train.Feature(float_list=tf.train.FloatList(value=flat.tolist()))
        else:
            numbers = tf.train.Int64List(value=flat.astype(np.int64).tolist())
            features[column.name] = tf.train.Feature(int64_list=numbers)
        if isinstance(values, Ragged):
            numbers = tf.train.Int64List(value=values.lengths.tolist())
            features[f"{column.name}/lengths"] = tf.train.Feature(int64_list=numbers)
    singles = [tf.train.Features(feature={key: features[key]}) for key in sorted(features)]
    body = b"".join(single.SerializeToString() for single in singles)
    return b"\x0a" + bytes(tf.train.Int64List(value=[len(body)]).SerializeToString()[2:]) + body


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(drawn=rows_of(), chunk=st.sampled_from([1, 200, 1 << 19]))
def test_every_row_is_what_protobuf_serialises(tf: Any, drawn: Any, chunk: int) -> None:
    columns, data, _ = drawn
    # The bits of a NaN change on their way through Python.
    data = {name: values.with_flat(np.nan_to_num(values.flat)) for name, values in data.items()}
    wanted = [by_protobuf(tf, columns, data, row) for row in range(len(data["sequence"]))]
    assert list(encode_examples(columns, data, chunk)) == wanted


def test_lengths_numbers_and_keys_around_each_size_are_what_protobuf_serialises(tf: Any) -> None:
    """Sizes around each length of a length: 127, 128, 16383, 16384; and numbers around each length of a number."""
    lengths = [0, 1, 41, 42, 43, 62, 63, 64, 126, 127, 128, 129, 5460, 5461, 5462, 16_370, 16_383, 16_384, 70_000, 0]
    values = np.random.default_rng(1).integers(0, 150_000, sum(lengths)).astype(np.int32)
    data = {
        "sequence": Ragged.from_lengths(values, lengths),
        "loss_mask": Ragged.from_lengths(values % 2 == 0, lengths),
        "labels": Ragged.from_lengths(np.where(values % 3 == 0, values, -100), lengths),
    }
    columns = [SEQUENCE, MASK, Column("labels", "int32", 1, "labels")]
    borders = [sign * (1 << bits) + step for bits in range(0, 63, 7) for sign in (1, -1) for step in (-1, 0)]
    numbers = np.array([*borders, -(2**63), 2**63 - 1])
    for size in (127, 128, 300):
        columns.append(Column("k" * size, "int64", 1, "value"))
        data["k" * size] = Ragged.from_lengths(numbers, [len(numbers), *[0] * (len(lengths) - 1)])
    wanted = [by_protobuf(tf, columns, data, row) for row in range(len(lengths))]
    assert list(encode_examples(columns, data)) == wanted


def test_float64_is_rounded_to_float32(tmp_path: Path) -> None:
    column = Column("v", "float64", 1, "value")
    write(tmp_path, [column], [{"v": Ragged.from_lists([[0.1, 1e300, -1e300]], np.float64)}])
    values = read(tmp_path, [column]).row(0)["v"]
    assert isinstance(values, np.ndarray)
    assert values.dtype == np.float64
    assert values.tolist() == [float(np.float32(0.1)), float("inf"), float("-inf")]


# What it refuses.


def test_a_file_cut_anywhere_names_file_and_record(tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE, MASK], [sft()])
    whole = path.read_bytes()
    last = len(whole) - len(payloads(whole)[2]) - 16
    for size in range(last + 1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"shard_0000\.tfrecord: row 2 is cut"):
            len(read(tmp_path, [SEQUENCE, MASK]))
    path.write_bytes(whole[:last])
    assert len(read(tmp_path, [SEQUENCE, MASK])) == 2


# Examples of other writers.


DAMAGED = r"not the tf\.train\.Example of a row: ."
(GOOD,) = encode_examples([SEQUENCE], {"sequence": Ragged.from_lists([[300, 2]])})


@pytest.mark.parametrize(
    ("payload", "column", "message"),
    [
        (b"", SEQUENCE, "no feature 'sequence'"),
        (GOOD[:-1], SEQUENCE, DAMAGED),
        (GOOD[:-1] + b"\xff", SEQUENCE, DAMAGED),
        (GOOD, Column("sequence", "float32", 1, "value"), "feature 'sequence' is no list of float32"),
        (GOOD, Column("sequence", "uint8", 1, "value"), "column 'sequence': 300 does not fit uint8"),
        (GOOD, Column("sequence", "int32", 2, "value"), "no feature 'sequence/lengths'"),
    ],
)
def test_what_is_no_example_of_a_row_is_refused(payload: bytes, column: Column, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_example(payload, [column])


@given(st.binary(max_size=60), st.integers(0, len(GOOD)))
def test_damaged_examples_only_ever_raise_value_errors(noise: bytes, at: int) -> None:
    for payload in (noise, GOOD[:at] + noise, GOOD[:at] + noise + GOOD[at:]):
        try:
            row = decode_example(payload, [SEQUENCE])
        except ValueError:
            continue
        assert isinstance(row["sequence"], np.ndarray)


def test_tensorflow_parses_every_kind_of_column_and_writes_these_bytes(tf: Any, tmp_path: Path) -> None:
    responses: list[list[list[int]]] = [[[1, 2], [], [300]], [], [[70000]]]
    rewards = [[0.5, -1.0, 3.0], [], [float("inf")]]
    lists = {"responses": Ragged.from_lists(responses, depth=2), "rewards": Ragged.from_lists(rewards, np.float32)}
    columns = [SEQUENCE, MASK, RESPONSES, ALL[-1]]
    path, foreign = write(tmp_path, columns, [sft() | lists]), tmp_path / "foreign"
    with tf.io.TFRecordWriter(str(foreign)) as writer:
        for payload in payloads(path.read_bytes()):
            writer.write(payload)
    assert path.read_bytes() == foreign.read_bytes()
    assert parsed(tf, path, columns) == {
        "sequence": sft()["sequence"].to_lists(),
        "loss_mask": [[0, 1, 1], [], [1, 0]],
        "responses": responses,
        "responses/lengths": [[2, 0, 1], [], [1]],
        "rewards": rewards,
    }


# array_record, read back by grain and protobuf


def test_grain_reads_the_records_of_all_shards_in_any_order(tmp_path: Path) -> None:
    """And they are what MaxText's grain pipeline parses: int64 lists of `tf.train.Example`."""
    pytest.importorskip("array_record")
    grain = pytest.importorskip("grain")
    train = pytest.importorskip("tensorflow").train
    parts = [random_rows(300, 1), random_rows(7, 2)]
    paths = [str(write_as("array_record", tmp_path, ALL, [rows], shard)) for shard, rows in enumerate(parts)]
    source = grain.sources.ArrayRecordDataSource(paths)
    wanted = joined(parts)
    assert len(source) == 307
    for index in (306, 0, 299, 300, 17):
        features = train.Example.FromString(source[index]).features.feature
        assert list(features["sequence"].int64_list.value) == wanted["sequence"][index]
        assert list(features["loss_mask"].int64_list.value) == wanted["loss_mask"][index]
        assert list(features["responses/lengths"].int64_list.value) == [len(row) for row in wanted["responses"][index]]
        assert list(features["rewards"].float_list.value) == wanted["rewards"][index]
    shuffled = list(grain.MapDataset.source(source).shuffle(seed=3))
    assert sorted(shuffled) == sorted(source[index] for index in range(307))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux shows them")
def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: Patch) -> None:
    array_record = pytest.importorskip("beam_prep.formats.array_record")
    pytest.importorskip("array_record")
    for shard in range(70):
        write_as("array_record", tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[shard]])}], shard)
    array_record.opened_file.cache_clear()
    before = len(os.listdir("/proc/self/fd"))
    readers = [read_as("array_record", tmp_path, [SEQUENCE], shard) for shard in range(70)]
    assert [plain(reader.row(0))["sequence"] for reader in readers] == [[shard] for shard in range(70)]
    assert len(os.listdir("/proc/self/fd")) <= before + 64


def test_a_file_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    path = write_as("array_record", tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1]])}])
    assert plain(read_as("array_record", tmp_path, [SEQUENCE]).row(0)) == {"sequence": [1]}
    path.unlink()
    write_as("array_record", tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[2], [3]])}])
    assert plain(read_as("array_record", tmp_path, [SEQUENCE]).row(1)) == {"sequence": [3]}
