"""Presets in the collate functions of their trainers: `torchtune`, `trl_dpo`. No text is prepared a second time."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="no torch here: make test-trainers")
pytest.importorskip("torchtune", reason="no torchtune here: make test-trainers")

from torchtune.data import padded_collate_packed, padded_collate_sft  # noqa: E402

import beam_prep as bp  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.trainers.conftest import Outputs  # noqa: E402
from tests.trainers.documents import rows_of  # noqa: E402


def test_rows_are_padded_to_batches(outputs: Outputs) -> None:
    output = outputs("sft_conversation", output={"preset": "torchtune"})
    rows = rows_of(output)
    assert rows.column_names == ["tokens", "labels"]
    batch = padded_collate_sft([rows[0], rows[1]], padding_idx=7)
    for found, name, fill in ((batch["tokens"], "tokens", 7), (batch["labels"], "labels", -100)):
        width = max(len(rows[0][name]), len(rows[1][name]))
        assert found.tolist() == [rows[i][name] + [fill] * (width - len(rows[i][name])) for i in (0, 1)]


def test_a_packed_row_has_its_positions_and_the_mask_of_its_documents(outputs: Outputs) -> None:
    output = outputs("sft_packed", output={"preset": "torchtune", "names": {}}, max_seq_len=120, max_packed_len=400)
    rows = rows_of(output).with_format("torch")
    batch = padded_collate_packed([rows[0]])
    row = bp.open(output)[0]
    for name in ("tokens", "labels", "input_pos"):
        assert batch[name].tolist() == [row[name].tolist()]
    blocks = torch.block_diag(*[torch.ones(n, n, dtype=torch.bool).tril() for n in row["seq_lens"].tolist()])
    assert len(row["seq_lens"]) > 1
    place = torch.arange(len(row["tokens"]))
    mask = batch["mask"]
    if isinstance(mask, torch.Tensor):
        assert torch.equal(mask[0], blocks.bool())
    else:  # a function, for flex attention
        found = mask.mask_mod(torch.tensor(0), None, place[:, None], place[None, :])
        assert torch.equal(found, blocks.bool())


# trl_dpo


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: str) -> Path:
    config = bp.PipelineConfig.from_json(ROOT / "configs" / "dpo_conversation.json").canonical()
    given = {
        "input": {"sources": config["input"]["sources"], "implicit_prompt": True},
        "preprocessing": {"max_items": 12},
        "output": {"preset": "trl_dpo"},
    }
    for source in given["input"]["sources"].values():
        source.pop("mask_key")
    folder = tmp_path_factory.mktemp("dpo") / "out"
    source = str(ROOT / "examples/data/preference.jsonl")
    bp.Pipeline(bp.PipelineConfig.from_dict(given), [source], folder, tokenizer_path).run(["--runner=FnApiRunner"])
    return folder


def test_the_collator_gives_prompts_and_completions(pairs: Path) -> None:
    trainer = pytest.importorskip("trl.trainer.dpo_trainer")
    rows = rows_of(pairs)
    batch = trainer.DataCollatorForPreference(pad_token_id=0)([rows[0], rows[1]])
    for place, side in enumerate(("chosen", "rejected")):
        for number in range(2):
            row = rows[number]
            at = 2 * place + number
            ids = row["prompt_ids"] + row[f"{side}_ids"]
            assert batch["input_ids"][at, : len(ids)].tolist() == ids
            completion = batch["completion_mask"][at].nonzero()[:, 0].tolist()
            assert completion == list(range(len(row["prompt_ids"]), len(ids)))
