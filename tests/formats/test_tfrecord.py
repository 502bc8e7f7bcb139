"""`tfrecord`, read back by TensorFlow itself, and by its own reader; its bytes are those of protobuf."""

import json
import pickle
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.errors import FormatError
from beam_prep.formats import FORMATS, ShardReader, example, tfrecord
from beam_prep.formats.example import encode_examples
from beam_prep.formats.tfrecord import decode_example, features

SEQUENCE = Column("sequence", "int32", 1, "ids")
MASK = Column("loss_mask", "bool", 1, "mask", of="sequence")
RESPONSES = Column("responses", "int32", 2, "ids")
REWARDS = Column("rewards", "float32", 1, "value")

SEQUENCES = [[5, 150_000, 7], [], [-1, 2**31 - 1]]
MASKS = [[False, True, True], [], [True, False]]


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def write(
    folder: Path, columns: Sequence[Column], slices: Sequence[dict[str, Ragged]], shard: int = 0, shards: int = 1
) -> Path:
    with ExitStack() as opened:

        def open_file(path: str) -> BinaryIO:
            return opened.enter_context(open(folder / path, "xb"))

        writer = FORMATS["tfrecord"].writer(open_file, columns, shard, shards)
        for rows in slices:
            writer.write(rows)
        writer.close()
    (path,) = folder.iterdir()
    return path


def read(folder: Path, columns: Sequence[Column], shard: int = 0) -> ShardReader:
    return FORMATS["tfrecord"].read(folder, columns, shard, 1)


def payloads(data: bytes) -> list[bytes]:
    """The records of a file by their lengths alone."""
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        found.append(data[at + 12 : at + 12 + size])
        at += size + 16
    return found


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to_lists() if isinstance(value, Ragged) else value.tolist() for name, value in row.items()}


def sft() -> dict[str, Ragged]:
    return {"sequence": Ragged.from_lists(SEQUENCES), "loss_mask": Ragged.from_lists(MASKS, bool)}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


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


def test_tensorflow_parses_ids_and_mask(tf: Any, tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE, MASK], [sft()])
    assert path.name == "shard_0000.tfrecord"
    assert parsed(tf, path, [SEQUENCE, MASK]) == {"sequence": SEQUENCES, "loss_mask": [[0, 1, 1], [], [1, 0]]}


def test_tensorflow_parses_lists_of_lists_and_floats(tf: Any, tmp_path: Path) -> None:
    responses: list[list[list[int]]] = [[[1, 2], [], [300]], [], [[]], [[70000]]]
    rewards = [[0.5, -1.0, 3.0], [], [float("inf")], [0.0]]
    rows = {"responses": Ragged.from_lists(responses, depth=2), "rewards": Ragged.from_lists(rewards, np.float32)}
    path = write(tmp_path, [RESPONSES, REWARDS], [rows])
    assert parsed(tf, path, [RESPONSES, REWARDS]) == {
        "responses": responses,
        "responses/lengths": [[2, 0, 1], [], [0], [1]],
        "rewards": rewards,
    }


def test_features_describe_every_key() -> None:
    assert features([RESPONSES, REWARDS, MASK, Column("wide", "float64", 1, "value")]) == {
        "responses": {"type": "int64", "dtype": "int32", "kind": "ragged", "lengths": "responses/lengths"},
        "responses/lengths": {"type": "int64", "dtype": "int64", "kind": "ragged"},
        "rewards": {"type": "float32", "dtype": "float32", "kind": "ragged"},
        "loss_mask": {"type": "int64", "dtype": "bool", "kind": "ragged"},
        "wide": {"type": "float32", "dtype": "float64", "kind": "ragged"},
    }


# The bytes are protobuf's.

INTEGERS = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
FLOATS = ["float16", "float32", "float64"]
NAMES = st.sampled_from(["sequence", "a", "aa", "loss_mask", "Z", "x" * 127, "y" * 128, "k" * 300])


def elements(dtype: str) -> st.SearchStrategy[Any]:
    if dtype == "bool":
        return st.booleans()
    if dtype in FLOATS:
        return st.floats(width=32 if dtype == "float64" else np.dtype(dtype).itemsize * 8)  # type: ignore[arg-type]
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    borders = [sign * (1 << bits) + step for bits in range(0, 65, 7) for sign in (1, -1) for step in (-1, 0)]
    known = [value for value in (0, low, high, 2**63 - 1, 2**63, *borders) if low <= value <= high]
    return st.one_of(st.sampled_from(known), st.integers(low, high), st.integers(max(low, -3), 127))


@st.composite
def shards(draw: st.DrawFn) -> tuple[list[Column], dict[str, Ragged]]:
    """Columns of any dtype and depth, and rows of them."""
    rows = draw(st.integers(0, 5))
    columns, data = [], {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        dtype, depth = draw(st.sampled_from(INTEGERS + FLOATS)), draw(st.sampled_from([1, 1, 2]))
        values: st.SearchStrategy[Any] = st.lists(elements(dtype), max_size=draw(st.sampled_from([3, 40])))
        if depth == 2:
            values = st.lists(values, max_size=3)
        columns.append(Column(name, dtype, depth, "value"))
        data[name] = Ragged.from_lists(draw(st.lists(values, min_size=rows, max_size=rows)), dtype, depth)
    return columns, data


def by_protobuf(tf: Any, columns: Sequence[Column], data: dict[str, Ragged], row: int) -> bytes:
    """One row, serialised by protobuf: feature by feature, in the order of the keys.

    Features that follow each other are one message `Features`, says protobuf's encoding ("Last One Wins"). All at once
    would be the same, but for upb's order of a key and its own head, as in "responses/lengths" and "responses".
    """
    message = example_of(tf, columns, data, row)
    keys = sorted(message.features.feature)
    singles = [tf.train.Features(feature={key: message.features.feature[key]}) for key in keys]
    body = b"".join(single.SerializeToString() for single in singles)
    size = tf.train.Int64List(value=[len(body)]).SerializeToString()[2:]
    payload = b"\x0a" + bytes(size) + body
    whole: bytes = message.SerializeToString(deterministic=True)
    assert tf.train.Example.FromString(payload).SerializeToString(deterministic=True) == whole
    if not any(longer.startswith(key) for key, longer in pairwise(keys)):
        assert whole == payload
    return payload


def example_of(tf: Any, columns: Sequence[Column], data: dict[str, Ragged], row: int) -> Any:
    """One row as a `tf.train.Example`."""
    message = tf.train.Example()
    for column in columns:
        values = data[column.name][row]
        flat = values.flat if isinstance(values, Ragged) else values
        feature = message.features.feature[column.name]
        if column.dtype in FLOATS:
            feature.float_list.SetInParent()
            feature.float_list.value.extend(flat.tolist())
        else:
            feature.int64_list.SetInParent()
            feature.int64_list.value.extend(flat.astype(np.int64).tolist())
        if isinstance(values, Ragged):
            lengths = message.features.feature[f"{column.name}/lengths"]
            lengths.int64_list.SetInParent()
            lengths.int64_list.value.extend(values.lengths.tolist())
    return message


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(shard=shards())
def test_every_row_is_what_protobuf_serialises(tf: Any, shard: tuple[list[Column], dict[str, Ragged]]) -> None:
    columns, data = shard
    rows = len(next(iter(data.values())))
    wanted = [by_protobuf(tf, columns, data, row) for row in range(rows)]
    assert list(encode_examples(columns, data)) == wanted


@given(shard=shards(), cuts=st.lists(st.integers(0, 5), max_size=3), piece=st.sampled_from([1, 200, 1 << 20]))
def test_slices_and_pieces_of_any_size_give_the_same_file_and_the_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    shard: tuple[list[Column], dict[str, Ragged]],
    cuts: list[int],
    piece: int,
) -> None:
    columns, data = shard
    rows = len(next(iter(data.values())))
    borders = [0, *sorted(min(cut, rows) for cut in cuts), rows]
    slices = [{name: ragged[a:b] for name, ragged in data.items()} for a, b in pairwise(borders)]
    once, many = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("many")
    path = write(once, columns, [data])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "PIECE", piece)
        patch.setattr(example, "CHUNK_VALUES", piece)
        assert write(many, columns, slices).read_bytes() == path.read_bytes()
    reader = read(once, columns)
    assert len(reader) == rows
    for index in range(rows):
        row = reader.row(index)
        assert list(row) == [column.name for column in columns]
        for name, values in row.items():
            wanted = data[name][index]
            flat, wanted_flat = (item.flat if isinstance(item, Ragged) else item for item in (values, wanted))
            assert flat.dtype == wanted_flat.dtype
            np.testing.assert_array_equal(flat, wanted_flat)
            if isinstance(wanted, Ragged):
                assert isinstance(values, Ragged)
                assert values.offsets.tolist() == wanted.offsets.tolist()


def test_rows_of_many_lengths_are_what_protobuf_serialises(tf: Any) -> None:
    """Sizes around each length of a length: 127, 128, 16383, 16384."""
    lengths = [0, 1, 41, 42, 43, 62, 63, 64, 126, 127, 128, 129, 5460, 5461, 5462, 16_370, 16_383, 16_384, 70_000, 0]
    values = np.random.default_rng(1).integers(0, 150_000, sum(lengths)).astype(np.int32)
    data = {
        "sequence": Ragged.from_lengths(values, lengths),
        "loss_mask": Ragged.from_lengths(values % 2 == 0, lengths),
        "labels": Ragged.from_lengths(np.where(values % 3 == 0, values, -100), lengths),
    }
    columns = [SEQUENCE, MASK, Column("labels", "int32", 1, "labels")]
    wanted = [by_protobuf(tf, columns, data, row) for row in range(len(lengths))]
    assert list(encode_examples(columns, data)) == wanted


def test_crcs_and_lengths_are_those_of_the_format(tf: Any, tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists(SEQUENCES)}])
    foreign = tmp_path / "foreign"
    with tf.io.TFRecordWriter(str(foreign)) as writer:
        for payload in payloads(path.read_bytes()):
            writer.write(payload)
    assert path.read_bytes() == foreign.read_bytes()


def test_several_shards_are_numbered(tmp_path: Path) -> None:
    assert write(tmp_path, [SEQUENCE, MASK], [sft()], 12345, 20000).name == "shard_12345.tfrecord"
    assert len(read(tmp_path, [SEQUENCE, MASK], 12345)) == 3


def test_values_may_be_views_and_are_cast_where_the_dtype_differs(tmp_path: Path) -> None:
    arrow = pa.array([[9], [1, 2], [], [3]], pa.list_(pa.uint8()))[1:]
    over_arrow = Ragged(arrow.flatten().to_numpy(), arrow.offsets.to_numpy() - arrow.offsets[0].as_py())
    rows = {
        "small": over_arrow,
        "strided": Ragged.from_lengths(np.arange(600, dtype=np.int64)[::200], [2, 0, 1]),
        "swapped": Ragged.from_lengths(np.array([1.5, 2, 3], ">f8"), [2, 0, 1]),
        "inner": Ragged.from_lists([[[9]], [[1], []], [], [[200, 3]]], depth=2)[1:],
    }
    columns = [
        Column("small", "uint8", 1, "value"),
        Column("strided", "int16", 1, "value"),
        Column("swapped", "float64", 1, "value"),
        Column("inner", "int32", 2, "value"),
    ]
    write(tmp_path, columns, [rows])
    reader = read(tmp_path, columns)
    assert [plain(reader.row(index)) for index in range(3)] == [
        {"small": [1, 2], "strided": [0, 200], "swapped": [1.5, 2.0], "inner": [[1], []]},
        {"small": [], "strided": [], "swapped": [], "inner": []},
        {"small": [3], "strided": [400], "swapped": [3.0], "inner": [[200, 3]]},
    ]


def test_float64_is_rounded_to_float32(tmp_path: Path) -> None:
    column = Column("v", "float64", 1, "value")
    write(tmp_path, [column], [{"v": Ragged.from_lists([[0.1, 1e300, -1e300]], np.float64)}])
    values = read(tmp_path, [column]).row(0)["v"]
    assert isinstance(values, np.ndarray)
    assert values.dtype == np.float64
    assert values.tolist() == [float(np.float32(0.1)), float("inf"), float("-inf")]


def test_memory_and_writes_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "PIECE", 1000)
    sizes: list[int] = []

    class File:
        def write(self, data: memoryview) -> None:
            sizes.append(len(data))

    rows = {"sequence": Ragged.from_lengths(np.full(10_300, 9, np.int32), [*[100] * 100, 5, 200, 95])}
    FORMATS["tfrecord"].writer(lambda path: File(), [SEQUENCE], 0, 1).write(rows)  # type: ignore[arg-type, return-value]
    assert max(sizes) < 1300
    assert sum(sizes) == sum(16 + len(row) for row in encode_examples([SEQUENCE], rows))


# What it refuses.


def test_columns_that_are_not_as_declared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found columns"):
        write(tmp_path, [SEQUENCE, MASK], [{"sequence": Ragged.from_lists([[1]])}])


def test_a_value_that_does_not_fit_its_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column 'v': 70000 does not fit int16"):
        write(tmp_path, [Column("v", "int16", 1, "value")], [{"v": Ragged.from_lists([[70000]])}])


def test_a_row_beyond_protobufs_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "MAX_SIZE", 50)
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1] * 20])}])
    with pytest.raises(ValueError, match=r"a row takes \d+ bytes as a tf\.train\.Example"):
        list(encode_examples([SEQUENCE], {"sequence": Ragged.from_lists([[1], [1] * 60])}))


def test_a_slow_crc_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert google_crc32c.implementation == "c"
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    with pytest.raises(ImportError, match="pip install"):
        write(tmp_path, [SEQUENCE], [])
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_byte_anywhere_names_file_and_record(tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE, MASK], [sft()])
    whole = path.read_bytes()
    first = len(payloads(whole)[0]) + 16
    second = first + len(payloads(whole)[1]) + 16
    for at in range(first, second):
        flip(path, at)
        reader = read(tmp_path, [SEQUENCE, MASK])
        with pytest.raises(FormatError, match=r"shard_0000\.tfrecord: row 1 is damaged"):
            reader.row(1)
        if at >= first + 12:
            assert plain(reader.row(2)) == {"sequence": SEQUENCES[2], "loss_mask": MASKS[2]}
        path.write_bytes(whole)


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


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"shard_0000\.tfrecord: no such file"):
        read(tmp_path, [SEQUENCE])


def test_rows_outside_are_index_errors(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE, MASK], [sft()])
    reader = read(tmp_path, [SEQUENCE])
    assert plain(reader.row(-1)) == {"sequence": SEQUENCES[2]}
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"row {index} of 3"):
            reader.row(index)


def test_close_closes_the_file(tmp_path: Path) -> None:
    file = open(tmp_path / "file", "xb")  # noqa: SIM115
    FORMATS["tfrecord"].writer(lambda path: file, [SEQUENCE], 0, 1).close()
    assert file.closed


def test_a_shard_without_rows_reads_back(tmp_path: Path) -> None:
    path = write(tmp_path, [SEQUENCE, RESPONSES], [])
    assert path.stat().st_size == 0
    assert len(read(tmp_path, [SEQUENCE, RESPONSES])) == 0


def test_a_reader_pickles_as_its_path(tmp_path: Path) -> None:
    write(tmp_path, [SEQUENCE], [{"sequence": Ragged.from_lists([[1] * 100_000])}])
    reader = read(tmp_path, [SEQUENCE])
    assert len(reader) == 1
    dumped = pickle.dumps(reader)
    assert len(dumped) < 1000
    assert len(pickle.loads(dumped).row(0)["sequence"]) == 100_000


# Examples of other writers.


def test_examples_of_other_writers_decode(tf: Any) -> None:
    """Fields in another order, unknown ones, lists that are not packed."""
    single = bytes([0x1A, 5, 0x08, 5, 0x08, 0x96, 0x01])
    packed = bytes([0x48, 1, 0x1A, 4, 0x0A, 2, 7, 8])
    floats = bytes([0x12, 7, 0x0A, 0]) + bytes([0x0D]) + struct.pack("<f", 1.5)
    entries = [
        bytes([0x12, len(single)]) + single + b"\x0a\x01a",
        b"\x0a\x01b" + bytes([0x12, len(packed)]) + packed,
        b"\x0a\x01c" + bytes([0x12, len(floats)]) + floats,
        b"\x0a\x05other",
    ]
    body = b"".join(bytes([0x0A, len(entry)]) + entry for entry in entries)
    payload = bytes([0x0A, len(body)]) + body + b"\x11" + bytes(8)
    columns = [Column("a", "int64", 1, "value"), Column("b", "int64", 1, "value"), Column("c", "float32", 1, "value")]
    foreign = tf.train.Example.FromString(payload).features.feature
    assert plain(decode_example(payload, columns)) == {
        "a": list(foreign["a"].int64_list.value),
        "b": list(foreign["b"].int64_list.value),
        "c": list(foreign["c"].float_list.value),
    }


DAMAGED = r"not the tf\.train\.Example of a row: ."
(GOOD,) = encode_examples([SEQUENCE], {"sequence": Ragged.from_lists([[300, 2]])})


@pytest.mark.parametrize("given", [bytes(GOOD), bytearray(GOOD), memoryview(GOOD), np.frombuffer(GOOD, np.uint8)])
def test_payloads_may_be_any_bytes(given: Any) -> None:
    assert plain(decode_example(given, [SEQUENCE])) == {"sequence": [300, 2]}


@pytest.mark.parametrize(
    ("payload", "column", "message"),
    [
        (b"", SEQUENCE, "no feature 'sequence'"),
        (b"\x0a", SEQUENCE, DAMAGED),
        (GOOD[:-1], SEQUENCE, DAMAGED),
        (b"\x0f", SEQUENCE, DAMAGED),
        (b"\xff" * 20, SEQUENCE, DAMAGED),
        (GOOD[:-1] + b"\xff", SEQUENCE, DAMAGED),
        (GOOD, Column("sequence", "float32", 1, "value"), "feature 'sequence' is no list of float32"),
        (GOOD, Column("sequence", "uint8", 1, "value"), "column 'sequence': 300 does not fit uint8"),
        (GOOD, Column("sequence", "int32", 2, "value"), "no feature 'sequence/lengths'"),
    ],
)
def test_what_is_no_example_of_a_row_is_refused(payload: bytes, column: Column, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_example(payload, [column])


def test_a_record_that_is_no_example_names_file_and_record(tf: Any, tmp_path: Path) -> None:
    with tf.io.TFRecordWriter(str(tmp_path / "shard_0000.tfrecord")) as writer:
        writer.write(GOOD)
        writer.write(b"hello")
    reader = read(tmp_path, [SEQUENCE])
    with pytest.raises(FormatError, match=r"shard_0000\.tfrecord: row 1 is damaged: not the tf\.train\.Example"):
        reader.row(1)


@given(st.binary(max_size=60), st.integers(0, len(GOOD)))
def test_damaged_examples_only_ever_raise_value_errors(noise: bytes, at: int) -> None:
    for payload in (noise, GOOD[:at] + noise, GOOD[:at] + noise + GOOD[at:]):
        try:
            row = decode_example(payload, [SEQUENCE])
        except ValueError:
            continue
        assert isinstance(row["sequence"], np.ndarray)


@given(st.lists(st.sampled_from([1, 127, 128, 2**14 - 1, 2**14, 2**21, 2**63 - 1, -1, -(2**63)]), max_size=40))
def test_varints_are_those_of_a_loop(values: list[int]) -> None:
    body, sizes = example.varints(np.array(values, np.int64))
    wanted = []
    for value in values:
        rest, part = value % 2**64, []
        while rest >= 128:
            part.append(rest % 128 + 128)
            rest //= 128
        wanted.append(bytes([*part, rest]))
    assert body == b"".join(wanted)
    assert sizes.tolist() == list(map(len, wanted))


def test_three_million_tokens_take_little_time() -> None:
    """A guard against a loop over tokens; the speed itself is in the benchmarks."""
    rows = {"sequence": Ragged.from_lengths(np.arange(3_000_000, dtype=np.int32) % 150_000, np.full(10_000, 300))}
    start = time.perf_counter()
    assert sum(map(len, encode_examples([SEQUENCE], rows))) > 8_000_000
    assert time.perf_counter() - start < 3
