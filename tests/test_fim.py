"""`output.fim`, as a user sees it: exact ids, and errors before anything runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import beam_prep as bp
from beam_prep.cli import main
from beam_prep.errors import ConfigError, TokenizerError
from tests.conftest import ROOT

PLAIN = ROOT / "examples" / "tokenizer"
NAMES = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
TEXTS = [f"def f{number}(x):\n    return x + {number}  # größer\n" for number in range(60)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example tokenizer with sentinels."""
    folder = tmp_path_factory.mktemp("fim") / "tokenizer"
    shutil.copytree(PLAIN, folder)
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_special_tokens(list(NAMES))
    made.save(str(folder / "tokenizer.json"))
    return folder


def config(fim: dict[str, Any], **preprocessing: Any) -> dict[str, Any]:
    return {
        "input": {"sections": [{"field": "text", "action": "train"}]},
        "preprocessing": {"min_chars": 1, **preprocessing},
        "output": {"fim": fim},
    }


def rows(folder: Path, settings: dict[str, Any], tokenizer: Path, texts: list[str], *options: str) -> list[list[int]]:
    folder.mkdir()
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    given = bp.PipelineConfig.from_dict(settings)
    job = bp.Pipeline(given, [str(folder / "in.jsonl")], folder / "out", tokenizer, block_bytes=65536)
    job.run([*options] or ["--runner=FnApiRunner"])
    assert main(["verify", str(folder / "out"), "--inputs"]) == 0
    return [row["sequence"].tolist() for row in bp.open(folder / "out")]


@pytest.mark.parametrize("mode", ["psm", "spm"])
@pytest.mark.parametrize("encode", ["separate", "joint"])
def test_each_part_is_encoded_between_the_sentinels(tmp_path: Path, tokenizer: Path, mode: str, encode: str) -> None:
    settings = config({"rate": 0.5, "mode": mode, "seed": 3}, eos="always", encode=encode)
    found = rows(tmp_path / "run", settings, tokenizer, TEXTS)
    loaded = bp.Tokenizer.load(tokenizer)
    before, middle, after = (int(loaded.reference.token_to_id(name) or 0) for name in NAMES)
    eos = loaded.id_of("eos_token")
    reordered = 0
    for ids, text in zip(found, TEXTS, strict=True):
        assert ids[-1] == eos
        if before not in ids:
            assert [ids[:-1]] == loaded.encode([text], False).to_lists()
            continue
        reordered += 1
        borders = [ids.index(token) for token in (before, after, middle)]
        assert borders == sorted(borders)
        parts = [ids[borders[0] + 1 : borders[1]], ids[borders[1] + 1 : borders[2]], ids[borders[2] + 1 : -1]]
        texts = [loaded.decode(part) for part in parts]
        assert text == (texts[0] + texts[2] + texts[1] if mode == "psm" else texts[2] + texts[1])
        # Each is what it would be alone: no token reaches over a border.
        assert parts == loaded.encode(texts, False).to_lists()
    assert 15 < reordered < 45


def test_the_eos_stays_at_the_end(tmp_path: Path, tokenizer: Path) -> None:
    loaded = bp.Tokenizer.load(tokenizer)
    name, eos = loaded.special_tokens["eos_token"], loaded.id_of("eos_token")
    texts = [text + name * (number % 2) for number, text in enumerate(TEXTS)]
    found = rows(tmp_path / "run", config({"rate": 1.0}, eos="if_missing"), tokenizer, texts)
    assert all(ids[-1] == eos and eos not in ids[:-1] for ids in found)


@pytest.mark.long
def test_workers_and_blocks_change_nothing(tmp_path: Path, tokenizer: Path) -> None:
    settings = config({"rate": 0.5, "seed": 1}, max_seq_len=16, truncation_mode="chunk")
    one = rows(tmp_path / "one", settings, tokenizer, TEXTS * 9)
    two = rows(
        *(tmp_path / "two", settings, tokenizer, TEXTS * 9),
        *("--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"),
    )
    assert one == two
    other = rows(tmp_path / "other", config({"rate": 0.5, "seed": 2}), tokenizer, TEXTS)
    assert other != one


def test_a_tokenizer_without_sentinels_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "some text"}\n')
    given = bp.PipelineConfig.from_dict(config({"rate": 0.5}))
    with pytest.raises(TokenizerError, match="none of the known sentinels"):
        bp.Pipeline(given, [str(tmp_path / "in.jsonl")], tmp_path / "out", PLAIN)
    assert not (tmp_path / "out").exists()


def test_sentinels_can_be_named(tmp_path: Path, tokenizer: Path) -> None:
    loaded = bp.Tokenizer.load(tokenizer)
    named = ["<|im_start|>", "<|pad|>", "<|bos|>"]
    (ids,) = rows(tmp_path / "run", config({"rate": 1.0, "sentinels": named}), tokenizer, TEXTS[:1])
    assert ids[0] == loaded.reference.token_to_id("<|im_start|>")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": {"sections": [{"field": "m", "action": "$role", "template": "conversation"}]}}, "output.fim: found"),
        ({"input": {"sections": [{"field": "a", "action": "mask"}, {"field": "b", "action": "train"}]}}, "output.fim"),
        ({"input": {"adapter": "tokenized"}}, "output.fim: found an object; it works only with one section"),
        ({"output": {"fim": {"rate": 1.5}}}, "output.fim.rate"),
        ({"output": {"fim": {"rate": 0.5, "mode": "pms"}}}, "output.fim.mode"),
        ({"output": {"fim": {"rate": 0.5, "sentinels": ["<a>", "<b>"]}}}, "output.fim.sentinels"),
        ({"output": {"fim": {}}}, "output.fim.rate"),
    ],
)
def test_rules_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bp.PipelineConfig.from_dict({**config({"rate": 0.5}), **change})
    assert message in str(caught.value)
