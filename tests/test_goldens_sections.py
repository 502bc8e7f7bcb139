"""The outputs of the reference implementation of the JSON-config format, byte for byte.

Where DESIGN section 7 rules otherwise, the difference and its reason stand in the test of that case.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import records_of, run_job, shared

pytestmark = pytest.mark.long

EXACT = "01_sft_chat 02_sft_instruction 03_pretrain 04_dpo 07_domain_shards 08_text_filter 09_dtype_mix".split()
EXACT += "11_truncate 12_max_items 14_mixed_sections 22_two_input_files".split()
# Rows without a trained token are dropped by default; the reference keeps them.
KEEP_ROWS_WITHOUT_LOSS = ("11_truncate", "14_mixed_sections")


def run_case(case: str, output: Path, changes: dict[str, Any] | None = None) -> Path:
    folder = shared("goldens", "sections", case)
    config = json.loads((folder / "config.json").read_text())
    for path, value in (changes or {}).items():
        part, key = path.split(".")
        config.setdefault(part, {})[key] = value
    if case in KEEP_ROWS_WITHOUT_LOSS:
        config.setdefault("preprocessing", {})["rows_without_loss"] = "keep"
    about = json.loads((folder / "case.json").read_text())
    inputs, tokenizer = [folder / name for name in about["inputs"]], shared("tokenizers", about["tokenizer"])
    # What the reference gives is the same: test_backends.py.
    run_job(config, inputs, output, tokenizer, tokenizer_backend="gigatoken")
    return folder / "expected"


def shards(tree: Path) -> dict[tuple[str, int], Path]:
    """(domain, shard) -> its folder. One shard lies directly in the folder of its domain."""
    found = {}
    for meta in tree.rglob("meta.json"):
        folder = meta.parent
        if folder.name.startswith("shard_"):
            found[folder.parent.name, int(folder.name[len("shard_") :])] = folder
        else:
            found[folder.name, 0] = folder
    return found


def read(folder: Path) -> dict[str, np.ndarray]:
    """An independent reader of the bin format: numpy and meta.json alone."""
    meta = json.loads((folder / "meta.json").read_text())
    return {
        key: np.memmap(folder / f"{key}.bin", dtype=entry["dtype"], mode="r", shape=tuple(entry["shape"]))
        for key, entry in meta.items()
    }


def assert_equal(expected: Path, output: Path, but: tuple[str, ...] = ()) -> None:
    wanted, found = shards(expected), shards(output)
    assert found.keys() == wanted.keys()
    for place, folder in wanted.items():
        want, got = read(folder), read(found[place])
        assert got.keys() - set(but) == want.keys() - set(but), place
        for key in want.keys() - set(but):
            assert got[key].dtype == want[key].dtype, (place, key)
            assert got[key].tobytes() == want[key].tobytes(), (place, key)


@pytest.mark.parametrize("case", EXACT)
def test_equals_the_reference_byte_for_byte(case: str, tmp_path: Path) -> None:
    expected = run_case(case, tmp_path / "out")
    assert_equal(expected, tmp_path / "out")
    if case == "04_dpo":  # offsets cut the stream into the reference's records
        records = records_of(expected.parent / "records.jsonl")
        meta = json.loads((tmp_path / "out/__default__/meta.json").read_text())
        for key in ("chosen", "chosen_mask", "rejected", "rejected_mask"):
            assert np.diff(meta[key]["offsets"]).tolist() == [record["len"][key] for record in records]


def test_grpo_rewards_are_float32_and_the_prompts_have_no_mask(tmp_path: Path) -> None:
    # The reference cuts rewards to int32 and writes an all-zero prompts_mask; nothing of a prompt can train.
    expected = run_case("05_grpo", tmp_path / "out")
    assert_equal(expected, tmp_path / "out", but=("rewards", "prompts_mask"))
    found = read(tmp_path / "out/__default__")
    assert found.keys() == {"prompts", "responses", "masks", "rewards"}
    assert found["rewards"].dtype == np.float32
    rows = records_of(expected.parent / "input.jsonl")
    rewards = np.array([reward for row in rows for reward in row["rewards"]], np.float32)
    assert found["rewards"].tobytes() == rewards.tobytes()
    whole = read(expected / "__default__/shard_0000")["rewards"]
    assert np.trunc(rewards).astype(np.int32).tolist() == whole.tolist()


def test_grpo_responses_are_cut_one_by_one(tmp_path: Path) -> None:
    # The reference (2026-06-03) cuts all responses of a record as one list; the later version cuts each, as we do,
    # and otherwise equals it here (its responses have no special tokens to add with this tokenizer).
    expected = run_case("06_grpo_float_rewards", tmp_path / "out")
    assert_equal(expected, tmp_path / "out", but=("responses", "masks", "prompts_mask"))
    later = read(expected.parent / "expected_later/__default__/shard_0000")
    found = read(tmp_path / "out/__default__")
    assert found["responses"].tobytes() == later["responses"].tobytes()
    assert found["masks"].tobytes() == later["masks"].tobytes()
    assert "prompts_mask" not in found


def test_case_10_has_the_references_shards(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    expected = run_case("10_h5_shards", tmp_path / "out", {"output.storage_format": "h5"})
    wanted = {(p.parent.name, int(p.stem[len("data_") :])): p for p in expected.rglob("*.h5")}
    ours = {(p.parent.name, int(p.stem[len("shard_") :])): p for p in (tmp_path / "out").rglob("*.h5")}
    assert ours.keys() == wanted.keys()
    for place, path in wanted.items():
        with h5py.File(path) as file, h5py.File(ours[place]) as mine:
            for key in file:
                assert mine[key].dtype == file[key]["data_0"].dtype
                assert mine[key][:].tolist() == file[key]["data_0"][:].tolist(), (place, key)


@pytest.mark.parametrize("case", ["31_head_bfd", "32_head_bfd_split", "36_head_no_position_ids_json_input"])
def test_packed_shards_of_the_later_version(case: str, tmp_path: Path) -> None:
    # The later reference packs a whole shard as one group, and writes pack behind pack without borders.
    changes = {"preprocessing.packing_group": 1_000_000}
    expected = run_case(case, tmp_path / "out", changes).parent / "expected_later"
    # Positions of the pieces of a split document: the reference lets them run on, ours begin at 0 at every entry of
    # seq_lens, as a reader that cuts where positions are 0 would join a piece to its neighbour.
    ruled = ("position_ids",) if case.startswith("32") else ()
    found = read(tmp_path / "out/__default__")
    wanted = read(expected / "__default__/shard_0000")
    assert found.keys() - {"seq_lens"} == wanted.keys()
    for key in wanted.keys() - set(ruled):
        assert found[key].dtype == wanted[key].dtype, key
        assert found[key].tobytes() == wanted[key].tobytes(), key
