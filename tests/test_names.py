"""`output.names`: columns are written under the names that a trainer reads, in every format; nothing else changes."""

import copy
from pathlib import Path

import apache_beam as beam
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.config import FORMAT_NAMES
from beam_prep.data.schema import RESERVED, name_problems
from beam_prep.errors import ConfigError
from beam_prep.inspect.draw import RowText
from beam_prep.inspect.output import shown_row
from tests.conftest import TOKENIZER_PATH, Folders, chat_config, run_job, says, write_lines
from tests.formats.shards import plain as as_lists

TALKS = [{"messages": says(user="How far? " * n, assistant=f"{n} miles.")} for n in range(1, 9)]
PACKED = chat_config(
    preprocessing={"packing_strategy": "bfd", "max_seq_len": 64},
    output={"columns": "labels", "storage_format": list(FORMAT_NAMES), "dtype": {"labels": "int64"}},
)
NAMES = {"input_ids": "tokens", "labels": "targets", "position_ids": "places", "seq_lens": "seq_lengths"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: Folders) -> tuple[bp.Dataset, bp.Dataset]:
    """One job under the columns' own names, and with others and the same token cache."""
    folder = tmp_path_factory.mktemp("pair")
    source, cache_dir = write_lines(folder / "in.jsonl", TALKS), str(folder / "cache")
    plain = run_job(PACKED, source, folder / "plain", cache_dir=cache_dir)
    output = {**PACKED["output"], "names": NAMES}
    named = run_job({**PACKED, "output": output}, source, folder / "named", cache_dir=cache_dir)
    return bp.open(plain.output), bp.open(named.output)


def test_only_the_names_of_the_columns_change(pair: tuple[bp.Dataset, bp.Dataset]) -> None:
    plain, named = pair
    assert named.columns == ("tokens", "targets", "places", "seq_lengths")
    assert [(column.name, column.dtype) for column in named.schema] == [
        *(("tokens", "int32"), ("targets", "int64"), ("places", "int32"), ("seq_lengths", "int32"))
    ]
    assert [column.of for column in named.schema] == [None, *["tokens"] * 3]
    renamed = [{NAMES[name]: value for name, value in as_lists(row).items()} for row in plain]
    assert renamed == [*map(as_lists, named)]
    for count, of in (("tokens", "input_ids"), ("trained", "labels")):
        assert named.manifest["totals"][count] == {NAMES[of]: plain.manifest["totals"][count][of]}
    same = ("inputs", "ledger", "counters", "domains", "rejects", "tokenizer")
    assert {key: named.manifest[key] for key in same} == {key: plain.manifest[key] for key in same}
    config = copy.deepcopy(named.manifest["config"])
    assert config["output"].pop("names") == NAMES
    assert config == plain.manifest["config"]
    assert named.run["blocks_reused"] == named.run["blocks"] == 1
    named.verify()
    shown = [RowText(marks=True).of(shown_row(dataset, 0)).plain for dataset in pair]
    assert "document 2 of" in shown[0]
    assert shown[0] == shown[1]


# Chains written by hand.


def test_a_chain_by_hand_takes_names_and_dtypes_too(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", TALKS)
    config, tokenizer = bp.PipelineConfig.from_dict(PACKED), bp.Tokenizer.load(TOKENIZER_PATH)
    with beam.Pipeline("FnApiRunner") as pipeline:
        blocks = pipeline | bp.ReadJSONL([str(source)]) | bp.Prepare(config, tokenizer)
        names, dtype = {"labels": "targets"}, {"input_ids": "uint16", "seq_lens": "int64"}
        layout = bp.Layout("bfd", 64)
        _ = blocks | bp.Shard(str(tmp_path / "out"), pack=layout, formats="arrow", names=names, dtype=dtype)
    dtypes = {column.name: column.dtype for column in bp.open(tmp_path / "out").schema}
    assert dtypes == {"input_ids": "uint16", "targets": "int32", "seq_lens": "int64"}


def test_a_dtype_of_a_column_that_is_not_written_is_refused(tmp_path: Path) -> None:
    ids = bp.Column("sequence", "int32", 1, "ids")
    with pytest.raises(ConfigError, match="dtype: found 'seqence', which is not written; columns here: sequence"):
        bp.Shard(str(tmp_path / "out"), dtype={"seqence": "uint16"}).pack.columns([ids])


@pytest.mark.parametrize("names", [{"labels": "a/b"}, {"labels": "x", "input_ids": "X"}, {"labels": "domain"}])
def test_a_chain_by_hand_refuses_names_when_it_is_built(names: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names: "):
        bp.Shard(str(tmp_path / "out"), names=names)


# What is accepted.

UNSAFE = ["1x", "_x", "", "x/y", "x\n", "é"]
WORDS = ["x", "X", "a", "A", "b_1", "B_1", "input_ids", "labels", "Labels", *RESERVED, *UNSAFE]


@given(
    st.lists(st.sampled_from(["input_ids", "labels", "x", "position_ids", "seq_lens"]), unique=True, min_size=1),
    st.dictionaries(st.sampled_from(["input_ids", "labels", "x", "position_ids", "seq_lens"]), st.sampled_from(WORDS)),
)
def test_accepted_names_are_distinct_and_safe(columns: list[str], names: dict[str, str]) -> None:
    if list(name_problems(names, columns)):
        return
    written = [names.get(column, column) for column in columns]
    assert names.keys() <= set(columns)
    assert len({name.lower() for name in written}) == len(columns)
    for column, name in zip(columns, written, strict=True):
        assert name.isascii()
        assert name.isidentifier()
        assert not name.startswith("_")
        assert name == column or (name.lower() not in RESERVED and name not in columns)
