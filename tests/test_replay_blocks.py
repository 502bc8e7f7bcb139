"""Replays block by block, without Beam: random records, and random pairs of configs."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, event, given, settings

from beam_prep import recipe
from beam_prep.config import PipelineConfig
from beam_prep.errors import ConfigError
from beam_prep.replay import rows_to_recheck, with_words
from beam_prep.storage.files import list_inputs
from beam_prep.storage.splits import read_split, split_file
from beam_prep.storage.token_cache import SMALL, EarlierBlocks, TokenCache
from beam_prep.tokens.tokenizer import Tokenizer
from tests.conftest import ROOT
from tests.test_replay import LOOP, MENDED, config

KB = 1 << 10
FILLER = "how far is it? " * 40
RARE = LOOP.replace("CHECK", "{%- if message.content == 'rare' %}!{%- endif %}")


def chat(*roles: str, words: int = 0, text: str = "", **more: Any) -> str:
    messages = [{"role": role, "content": text or f"{role} " + "far " * words} for role in roles]
    return json.dumps({"topic": "one", "messages": messages, "filler": FILLER, **more})


LINES = st.one_of(
    st.builds(chat, st.sampled_from(["user", "system", "tool"]), st.just("assistant"), words=st.integers(0, 60)),
    st.builds(chat, st.just("user"), st.just("assistant"), topic=st.sampled_from(["two", "three/four", None, 5])),
    st.sampled_from(
        [
            *("", "  \t", "[1]", '{"messages": 5}', '{"messages": [', '{"messages": [{"role": "user"}]}', "\ufeff{}"),
            chat("user", "assistant", text="rare"),
            chat("tool", "tool"),
            chat("user", "assistant", "tool", "assistant", words=9),
            chat("assistant", text="<|im_end|>"),
            json.dumps({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hi"}]}),
            json.dumps({"conversations": [{"from": "bing", "value": "Hi"}, {"from": "gpt", "value": "Hi"}]}),
            json.dumps({"messages": []}),
        ]
    ),
)
CONFIGS = [
    config(),
    config(MENDED),
    config(MENDED, mask={"assistant": "train", "tool": "train"}),
    config(MENDED, mask={"assistant": "last"}),
    config(MENDED, mask_default="train", mask={"system": "mask"}),
    config(preprocessing={"max_seq_len": 128}),
    config(MENDED, preprocessing={"max_seq_len": 40}),
    config(MENDED, preprocessing={"truncation_mode": "drop"}),
    config(MENDED, preprocessing={"rows_without_loss": "keep"}),
    config(MENDED, preprocessing={"rows_without_loss": "reject"}),
    config(MENDED, preprocessing={"packing_strategy": "bfd", "max_packed_len": 50}),
    config(MENDED, preprocessing={"control_tokens": "reject"}),
    config(MENDED, input={"adapter": "sharegpt"}),
    config(MENDED, input={"adapter": {"name": "sharegpt", "roles": {"bing": "user"}}}),
    config(MENDED, output={"domain_key": None}),
]


class Chain:
    """The blocks of a config, made without Beam."""

    def __init__(self, text: dict[str, Any], tokenizer: Tokenizer) -> None:
        self.config = PipelineConfig.from_dict(text)
        template = self.config.input.chat_template
        self.tokenizer = tokenizer if template is None else tokenizer.with_template(template)
        self.facts = recipe.facts(self.config, self.tokenizer, 1000)
        self.steps = recipe.chain(self.config, self.tokenizer)
        self.layout = recipe.layout(self.config, self.tokenizer)

    def make(self, path: Path, token_cache: TokenCache) -> Iterator[str]:
        """Writes the blocks of a file; gives their names."""
        for split in split_file((0, list_inputs([path])[0]), 64 * KB):
            for records in read_split(split, 64 * KB, token_cache):
                name = token_cache.name(records.origin.digest)
                batch = recipe.run_steps(self.steps, records)
                if batch.receipt is None:
                    eos_id, rows_without_loss = (
                        self.tokenizer.id_of("eos_token"),
                        self.config.preprocessing.rows_without_loss,
                    )
                    batch = self.layout.cached(batch, eos_id, rows_without_loss, self.config.columns())
                    if token_cache.earlier is not None:
                        batch = token_cache.earlier.complete(batch)
                    token_cache.write(batch, self.layout.tokens(batch), 1000)
                yield name


def contents(token_cache: TokenCache, names: list[str]) -> list[Any]:
    """All that blocks hold, but for the ways in which they were made: what became of each line, and every number."""
    found: list[Any] = []
    for name in names:
        receipt, (row_index,) = token_cache.receipt(name), token_cache.row_indexes([name])
        rows = [
            {column: values.to_lists() for column, values in token_cache.rows(name, place, 0, count).items()}
            for place, (_, count, _) in enumerate(receipt.domains)
        ]
        places = [0] * len(rows)
        lines: list[Any] = []
        for status in row_index.status.tolist():
            lines.append([None] if status == 0 else list(row_index.outcomes[status - 1]))
        for row, (line, domain) in enumerate(zip(row_index.line.tolist(), row_index.domain.tolist(), strict=True)):
            values = {column: each[places[domain]] for column, each in rows[domain].items()}
            counters = {key: int(counts[row]) for key, counts in row_index.counters.items() if counts[row]}
            lines[line] += [receipt.domains[domain][0], values, counters, int(row_index.tokens[row])]
            places[domain] += 1
        roles = [dict[str, list[int]]() for _ in lines]
        for line, role, counts in zip(
            row_index.roles.line, row_index.roles.role, row_index.roles.counts.T, strict=True
        ):
            roles[line][row_index.roles.names[role]] = counts.tolist()
        rejects = next(iter(token_cache.rejects([name]))) if receipt.counts("rejected") else []
        numbers = receipt.as_dict()
        counts = {each["what"]: each["count"] for each in numbers["counts"]}
        numbers["counts"] = {what: count for what, count in counts.items() if not what.startswith('["made"')}
        found.append((numbers, [*zip(lines, roles, strict=True)], rejects, row_index.drops))
    return found


@pytest.fixture(scope="module")
def chains(tokenizer_path: str) -> list[Chain]:
    tokenizer = Tokenizer.load(tokenizer_path)
    return [Chain(text, tokenizer) for text in [*CONFIGS, config(RARE)]]


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data(), lines=st.lists(LINES, min_size=1, max_size=40), times=st.integers(1, 9), small=st.booleans())
def test_a_replay_gives_what_a_run_from_scratch_gives_or_is_refused(
    data: st.DataObject, lines: list[str], times: int, small: bool, chains: list[Chain], tmp_path_factory: Any
) -> None:
    old, new = (chains[data.draw(st.integers(0, len(chains) - 1))] for _ in range(2))
    folder: Path = tmp_path_factory.mktemp("blocks")
    path = folder / "a.jsonl"
    path.write_text("\n".join(lines * times), encoding="utf-8")
    before = TokenCache(str(folder / "old"), recipe.cache_recipe(old.facts))
    scratch = TokenCache(str(folder / "scratch"), recipe.cache_recipe(new.facts))
    was, wanted = contents(before, [*old.make(path, before)]), contents(scratch, [*new.make(path, scratch)])
    changed = any(
        mine[0][0] is None and mine != theirs
        for one, other in zip(was, wanted, strict=True)
        for mine, theirs in zip(one[1], other[1], strict=True)
    )
    recheck = rows_to_recheck(old.facts, new.facts)
    if recheck is not None:
        templates = [each.tokenizer.contents()["chat_template.jinja"] for each in (old, new)]
        recheck = with_words(recheck, *templates) if templates[0] != templates[1] else recheck
    earlier = EarlierBlocks(before, "", recheck, SMALL if small else 0)
    token_cache = TokenCache(str(folder / "new"), scratch.recipe, earlier=earlier)
    event(f"{'changed' if changed else 'unchanged'}, {'all' if small or earlier.recheck is None else 'some'} compared")
    if changed:
        with pytest.raises(ConfigError, match="this record was kept, and would change"):
            list(new.make(path, token_cache))
    else:
        assert contents(token_cache, [*new.make(path, token_cache)]) == wanted


def test_two_templates_are_no_reason_to_compare_all(chains: list[Chain]) -> None:
    recheck = rows_to_recheck(chains[0].facts, chains[1].facts)
    assert recheck is not None
    assert not recheck.cut
    assert (recheck.roles, recheck.others) == (frozenset(), False)


EXAMPLES = {
    "dpo": "preference.jsonl",
    "grpo": "rollouts.jsonl",
    "grpo_tokens": "more/rollout_tokens.jsonl",
    "pretrain": "text.jsonl",
    "sft_chat": "chat.jsonl",
    "sft_conversation": "chat.jsonl",
    "sft_instruction": "instruction.jsonl",
    "sft_last_turn_shifted": "chat.jsonl",
    "sft_packed": "chat.jsonl",
    "sft_prompt_completion": "more/prompt_completion.jsonl",
    "sharegpt": "more/sharegpt.jsonl",
    "tools": "more/tools.jsonl",
}


LIMITS = {"grpo": (25, 35), "grpo_tokens": (35, 60), "sft_prompt_completion": (25, 35), "tools": (150, 600)}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.long
def test_a_larger_limit_for_records_of_every_kind(name: str, tokenizer_path: str, tmp_path: Path) -> None:
    text = json.loads(json.dumps(PipelineConfig.from_json(ROOT / "configs" / f"{name}.json").canonical()))
    path = tmp_path / "a.jsonl"
    path.write_bytes((ROOT / "examples" / "data" / EXAMPLES[name]).read_bytes() * 3)
    chains = []
    for limit in LIMITS.get(name, (70, 150)):
        text["preprocessing"].update(max_seq_len=limit, truncation_mode="drop", max_packed_len=None)
        chains.append(Chain(text, Tokenizer.load(tokenizer_path)))
    old, new = chains
    before, scratch, after = (
        TokenCache(str(tmp_path / each), recipe.cache_recipe(new.facts)) for each in ("old", "scratch", "new")
    )
    list(old.make(path, before))
    recheck = rows_to_recheck(old.facts, new.facts)
    assert recheck is not None
    after = dataclasses.replace(after, earlier=EarlierBlocks(before, "", recheck, 0))
    found = contents(after, [*new.make(path, after)])
    assert found == contents(scratch, [*new.make(path, scratch)])
    dropped = [
        sum(receipt["counts"]["dropped"].get("too_long", 0) for receipt, *_ in each)
        for each in (contents(before, [*old.make(path, before)]), found)
    ]
    assert dropped[0] > dropped[1]
