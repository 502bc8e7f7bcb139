"""The fast way changes no byte: both backends, whole runs."""

import pytest

from beam_prep.errors import TokenizerError
from beam_prep.formats.manifest import UNLISTED
from tests.conftest import ROOT, Log, Run, chat_config, run_of, shared, text_config, tree

BLANK = b" " * 2_000_000 + b"\n"
"""A blank line, with which an input is not small."""
CHAT = (ROOT / "examples" / "data" / "chat.jsonl").read_bytes()
CONFIG = chat_config(output={"storage_format": ["bin", "tfrecord"]})


def test_two_ways_give_the_same_bytes(run: Run, caplog: Log) -> None:
    trees = []
    for backend in ("gigatoken", "transformers"):
        with caplog.at_level("INFO", "beam_prep"):
            made = run(CONFIG, CHAT * 3, backend, tokenizer_backend=backend)
        assert f"encoded by {backend}: " in caplog.text
        trees.append(tree(made.output))
        ways = run_of(made.output)
        assert ways[f"encoded_by_{backend}"] == made.manifest["ledger"]["kept"]
        assert "blocks_encoded_again" not in ways
        assert "blocks_rendered_plainly" not in ways
        # The way is no part of the job.
        assert run(CONFIG, CHAT * 3, backend, tokenizer_backend="transformers").up_to_date
    assert trees[0] == trees[1]


def test_where_gigatoken_does_not_take_it_the_reference_encodes_and_the_run_says_why(run: Run, caplog: Log) -> None:
    unigram = shared("tokenizers", "t5-small")
    text = text_config(preprocessing={"min_chars": 0})
    rows = b"".join(b'{"text": "number %d"}\n' % number for number in range(5)) + BLANK
    with caplog.at_level("INFO", "beam_prep"):
        made = run(text, rows, tokenizer_path=unigram)
    assert run_of(made.output)["encoded_by_transformers"] == 5
    assert sum("gigatoken is not used" in line for line in caplog.text.splitlines()) == 1
    with pytest.raises(TokenizerError, match=r"--tokenizer_backend gigatoken: .*Unigram"):
        run(text, rows, "other", tokenizer_path=unigram, tokenizer_backend="gigatoken")


def test_small_inputs_are_encoded_by_the_reference_unless_another_is_asked_for(run: Run, caplog: Log) -> None:
    small, large = (run(CONFIG, CHAT + BLANK[len(CHAT) + less :], str(less)) for less in (1, 0))
    assert "encoded_by_gigatoken" not in run_of(small.output)
    assert "encoded_by_transformers" not in run_of(large.output)
    files = [tree(each.output, (*UNLISTED, "manifest.json")) for each in (small, large)]  # of other inputs
    assert files[0] == files[1]
    assert "is not used" not in caplog.text
