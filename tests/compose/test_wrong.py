"""Wrong configs are refused before anything runs; a mix that cannot be made names what is there."""

from typing import Any

import numpy as np
import pytest

from beam_prep.config import PipelineConfig
from beam_prep.errors import ConfigError, RunError
from beam_prep.reading.records import Drop
from beam_prep.shards.compose import DomainMix, Splits, view
from beam_prep.shards.receipts import Copies, RowIndex
from beam_prep.shards.runs import budgets
from beam_prep.tokens.batch import RoleCounts
from tests.conftest import Run, text_config

Given = dict[str, Any]
DRAWN: Given = {"shuffle": {"seed": 0}}


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"splits": {"a": 0.5, "b": 0.6}}, "output.splits: found shares that add up to 1.1; they must add up to 1"),
        ({"splits": {"a": 0.0, "b": 1.0}}, "output.splits.a: "),
        ({"splits": {"a/b": 1.0}}, "output.splits"),
        ({"splits": {"rejects": 1.0}}, "output.splits.rejects: found a split with a reserved name: choose another"),
        ({"splits": {"all": 1.0}}, "output.splits.all: found a split with a reserved name"),
        ({"split_key": "user"}, "output.split_key: found 'user'; it works only with output.splits"),
        ({"split_missing": "a"}, "output.split_missing: found 'a'; it works only with output.splits"),
        ({"splits": {"a": 1.0}, "split_key": "u", "split_missing": "b"}, "found 'b'; allowed: 'reject', 'a'"),
        ({"splits": {"a": 1.0}, "split_missing": "a"}, "found 'a'; it works only with output.split_key"),
        ({"mix": {"web": {"tokens": 5}}}, "output.mix: found a mix without output.shuffle, which draws its records: "),
        ({**DRAWN, "mix": {"web": {"share": 0.6}, "code": {"share": 0.5}}}, "shares that add up to 1.1; at most 1"),
        ({**DRAWN, "mix": {"web": {"share": 0.2, "tokens": 5}}}, "output.mix.web: found tokens and share; give one of"),
        ({**DRAWN, "mix": {"web": {"epochs": 2, "repeat": True}}}, "output.mix.web.repeat: found true beside epochs"),
        ({**DRAWN, "mix": {"web": {"epochs": 1001}}}, "output.mix.web.epochs: "),
        ({"shuffle": {"seed": 2**64}}, "output.shuffle.seed: "),
    ],
)
def test_a_config_that_is_wrong_says_what_is_wanted(output: Given, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PipelineConfig.from_dict({"input": {"adapter": "tokenized"}, "output": output})
    assert message in str(raised.value)
    assert "1 problem" in str(raised.value)


@pytest.mark.parametrize("shares", [{"train": 90, "test": 10}, {"a": 0.5, "b": 0.1}, {"a": 1.5, "b": -0.5}])
def test_splits_of_a_chain_that_are_no_shares_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="wanted numbers above 0 that add up to 1"):
        Splits.of(shares)


def test_shares_that_add_up_to_1_in_tenths_are_right() -> None:
    for count in (3, 10):
        shares = {f"s{number}": 1 / count for number in range(count)}
        PipelineConfig.from_dict({"input": {"adapter": "tokenized"}, "output": {"splits": shares}})


@pytest.mark.parametrize("shares", [(1 / 3, 1 / 3, 1 / 3), (0.9, 0.1 + 2**-54, 2**-54)])
def test_a_mix_of_shares_that_a_program_divided_needs_no_other_domain(shares: tuple[float, ...]) -> None:
    mix = dict(zip("abc", shares, strict=True))
    given = {name: {"share": share} for name, share in mix.items()}
    PipelineConfig.from_dict({"input": {"adapter": "tokenized"}, "output": {**DRAWN, "mix": given}})
    found = budgets(tuple((name, DomainMix(share=share)) for name, share in mix.items()), dict.fromkeys("abc", 999))
    assert max(found.values()) == 999


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({"wab": DomainMix(tokens=1)}, "there are no rows of domain 'wab'; wanted one of 'code', 'web'"),
        ({"web": DomainMix(tokens=1001)}, "1,001 tokens of domain 'web' are wanted, 1,000 are there, each to be "),
        ({"web": DomainMix(tokens=1e18, repeat=True)}, "are there, each to be written at most 1,000 times: lower them"),
        ({"web": DomainMix(share=0.5), "code": DomainMix(share=0.4)}, "add up to 0.9, and the other domains have 0"),
        ({"web": DomainMix(share=1.0)}, "the shares add up to 1, and the other domains have 500"),
    ],
)
def test_a_mix_that_cannot_be_made_names_what_is_there(mix: dict[str, DomainMix], message: str) -> None:
    with pytest.raises(RunError, match=r"^output\.mix: ") as raised:
        budgets(tuple(mix.items()), {"web": 1000, "code": 500, "none": 0})
    assert message in str(raised.value)


def test_a_mix_that_lacks_records_since_they_were_rejected_says_why(run: Run) -> None:
    output = {"domain_key": "source", **DRAWN, "mix": {"web": {"tokens": 5}}}
    config = text_config(preprocessing={"min_chars": 1}, output=output)
    with pytest.raises(RunError, match=r"2 of 3 records were rejected .* wrong_type.*, see .*rejects"):
        run(config, [{"text": 1, "source": "web"}] * 2 + [{"text": "kept", "source": "code"}])
    lacks = "there are no rows of domain 'web'; wanted one of 'code'; nothing was published"
    with pytest.raises(RunError, match=lacks):
        run(config, [{"text": "kept", "source": "code"}])


def test_a_view_has_no_marks_of_copies_and_room_for_one_more_reason() -> None:
    """A record that was marked and is a copy is dropped; a block may have 255 reasons already."""
    count = 3
    outcomes: Any = [("rejected", f"reason {number}") for number in range(255)]
    lines = np.arange(count, dtype=np.int32)
    marks = tuple(Drop(line, 10 * line, "contaminated", kind="marked") for line in range(count))
    zeros = np.zeros(count, np.int64)
    rows: Any = {"line": lines, "domain": zeros, "tokens": zeros, "length": zeros, "offset": 10 * lines}
    row_index = RowIndex(rows, np.zeros(count, np.uint8), outcomes, RoleCounts(), marks)
    one = np.array([1])
    seen = view(row_index, Copies(one.astype(np.int32), 0 * one, 0 * one, 0 * one, 0 * one), None)
    assert seen.status.tolist() == [0, 256, 0]
    assert seen.outcomes[255] == ("dropped", "duplicate")
    reasons = enumerate(("contaminated", "duplicate", "contaminated"))
    assert [(drop.line, drop.offset, drop.reason) for drop in seen.shown] == [(n, 10 * n, why) for n, why in reasons]
