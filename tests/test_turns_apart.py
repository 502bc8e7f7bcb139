"""`input.turns`: a conversation becomes a row for each trained turn, rendered as at inference."""

import itertools
from collections.abc import Iterable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import beam_prep as bp
from beam_prep.chat.apply import render_records
from beam_prep.data.schema import TurnsApart
from beam_prep.errors import ConfigError
from tests.conftest import TOKENIZER_PATH, Run, chat_config, prepared
from tests.reference import auto

TOKENIZER = bp.Tokenizer.load(TOKENIZER_PATH)
TEMPLATE = (
    "{%- set last = namespace(user=-1) -%}"
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{%- for m in messages -%}"
    "<|im_start|>{{ m.role }}:"
    "{%- if m.role == 'assistant' and m.thinking and loop.index0 > last.user -%}({{ m.thinking }}){%- endif -%}"
    "{{ m.content }}<|im_end|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant:{%- endif -%}"
)
"""Reasoning is in answers to the last question alone, as in Qwen3's."""


def say(role: str, content: str, thinking: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **({"thinking": thinking} if thinking else {}), **more}


CHAT = [say("user", "one"), say("assistant", "first", "hm"), say("user", "two"), say("assistant", "second", "so")]
CALLS = [say("user", "one"), say("assistant", "look", "hm"), say("tool", "seen"), say("assistant", "done", "ah")]


def shown(rows: Iterable[Any]) -> list[tuple[str, str]]:
    """(text, what is trained of it) of each row, of an output or a block."""
    decode = TOKENIZER.reference.decode
    found = []
    for row in rows:
        ids, mask = np.asarray(row["sequence"]), np.asarray(row["loss_mask"]) > 0
        text, trained = (decode(each.tolist(), skip_special_tokens=False) for each in (ids, ids[mask]))
        found.append((text, trained))
    return found


def config_of(turns: str, **parts: Any) -> dict[str, Any]:
    given = chat_config(output={"storage_format": "bin"})
    given["input"] |= {"chat_template": TEMPLATE, "turns": turns}
    return given | parts


def rows(chats: list[Any], turns: str, **parts: Any) -> list[tuple[str, str]]:
    """What `shown` gives of the rows of some conversations, without a job."""
    batch = prepared(config_of(turns, **parts), [{"messages": chat} for chat in chats])
    found = []
    for ids, mask, lengths in zip(*(batch[name].to_lists() for name in batch.schema), strict=True):
        borders = [0, *itertools.accumulate(lengths)]
        found += [{"sequence": ids[a:b], "loss_mask": mask[a:b]} for a, b in itertools.pairwise(borders)]
    return shown(found)


U, A, END = "<|im_start|>user:", "<|im_start|>assistant:", "<|im_end|>"
FIRST = (f"{U}one{END}{A}(hm)first{END}", "(hm)first<|im_end|>")
SECOND = (f"{U}one{END}{A}first{END}{U}two{END}{A}(so)second{END}", "(so)second<|im_end|>")


@pytest.mark.parametrize("turns", ["apart", "auto"])
def test_a_row_has_each_turn_with_its_reasoning(turns: str) -> None:
    assert rows([CHAT], turns) == [FIRST, SECOND]
    config = config_of(turns, mask_options={"reasoning": "drop_history"})  # history of the row, not of the conversation
    config["input"]["chat_template"] = TEMPLATE.replace(" and loop.index0 > last.user", "")
    assert rows([CHAT], turns, **config) == [FIRST, SECOND]


def test_auto_keeps_turns_together_that_history_does_not_change() -> None:
    (row,) = rows([CALLS], "auto")
    wanted = f"{U}one{END}{A}(hm)look{END}<|im_start|>tool:seen{END}{A}(ah)done{END}"
    assert row == (wanted, "(hm)look<|im_end|>(ah)done<|im_end|>")
    assert len(rows([CALLS], "apart")) == 2


def test_auto_begins_a_row_where_history_changes() -> None:
    found = rows([[*CALLS, say("user", "two"), say("assistant", "end", "ok")]], "auto")
    assert [trained for _, trained in found] == ["(hm)look<|im_end|>(ah)done<|im_end|>", "(ok)end<|im_end|>"]


ENDS_BETWEEN = (
    "{%- for m in messages -%}<|im_start|>{{ m.role }}:{{ m.content }}"
    "{%- if not loop.last or add_generation_prompt -%}<|im_end|>{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant:{%- endif -%}"
)


def test_auto_trains_an_end_token_that_is_written_only_before_another_turn() -> None:
    config = config_of("auto")
    config["input"]["chat_template"] = ENDS_BETWEEN
    together = {**config, "input": {**config["input"], "turns": "together"}}
    made, wanted = (prepared(each, [{"messages": CHAT}]) for each in (config, together))
    assert made["loss_mask"].to_lists() == wanted["loss_mask"].to_lists()
    ids = made["sequence"].flat[made["loss_mask"].flat > 0].tolist()
    assert TOKENIZER.decode(ids) == f"first{END}second"


HEADER_ENDS = (
    "{%- for m in messages -%}{{ '<|im_start|>' if m.role == 'assistant' else '<|pad|>' }}"
    "{%- if m.role == 'assistant' and loop.last -%}({{ m.thinking }}){%- endif -%}{{ m.content }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>{%- endif -%}"
)
"""As GLM: no token of its own ends an answer, but the header behind it."""


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (ENDS_BETWEEN, [f"first{END}", "second"]),
        (ENDS_BETWEEN.replace("<|im_end|>", "{{ '\\n<|im_end|>' }}"), [f"first\n{END}", "second"]),
        (HEADER_ENDS, ["(hm)first<|pad|>", "(so)second"]),
    ],
)
def test_a_row_ends_with_the_token_that_stops_the_model(template: str, wanted: list[str]) -> None:
    found = rows([CHAT], "apart", input={**config_of("apart")["input"], "chat_template": template})
    assert [trained for _, trained in found] == wanted


def test_auto_begins_a_row_where_the_template_marks_only_the_last_answer() -> None:
    marked = "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    body = "{% if loop.last %}" + marked + "{% else %}{{ m.content }}<|im_end|>{% endif %}"
    template = "{% for m in messages %}<|im_start|>{{ m.role }}:" + body + "{% endfor %}"
    found = rows([CHAT], "auto", input={**config_of("auto")["input"], "chat_template": template})
    assert [trained for _, trained in found] == [f"first{END}", f"second{END}"]


@pytest.mark.parametrize("turns", ["apart", "auto"])
def test_the_last_of_a_role_is_that_of_the_conversation(turns: str) -> None:
    trained = [trained for _, trained in rows([CHAT], turns, mask={"assistant": "train", "user": "last"})]
    assert trained == [FIRST[1], f"two<|im_end|>{SECOND[1]}"]


def test_a_turn_that_says_train_false_has_no_row() -> None:
    chat = [CHAT[0], {**CHAT[1], "train": False}, *CHAT[2:]]
    assert rows([chat], "apart") == [SECOND]


def test_rows_have_the_place_and_the_fields_of_their_record_and_are_counted(run: Run) -> None:
    config = config_of("apart", output={"keep_fields": ["id"]})
    ds = bp.open(run(config, [{"messages": CHAT, "id": f"r{n}"} for n in range(3)]).output)
    assert [row["id"] for row in ds] == ["r0", "r0", "r1", "r1", "r2", "r2"]
    assert ds.manifest["ledger"]["kept"] == 3
    assert (ds.manifest["totals"]["rows"], ds.manifest["totals"]["turns"]) == (6, {"rows": 3, "turns": 6})
    assert "row_lengths" not in [column.name for column in ds.schema]
    ds.verify()


def test_a_row_that_is_too_long_is_left_out_alone_and_a_record_without_any_is_dropped(run: Run) -> None:
    question = say("user", "two " * 100)
    chats = [{"messages": chat} for chat in ([*CHAT[:2], question, CHAT[3]], [question, *CHAT[1:]])]
    config = config_of("apart", preprocessing={"max_seq_len": 64, "truncation_mode": "drop"})
    ds = bp.open(run(config, chats, max_no_loss_rate=1).output)
    assert shown(ds) == [FIRST]
    assert ds.manifest["counters"]["rows_dropped"] == 1
    assert ds.manifest["ledger"]["dropped"] == {"too_long": 1}
    trained = ds.manifest["totals"]["trained"]
    assert sum(each["trained"] for each in ds.manifest["roles"].values()) == sum(trained.values())


def test_a_record_with_a_turn_that_cannot_be_used_is_rejected_whole() -> None:
    assert rows([CHAT, [*CHAT[:3], say("assistant", "x", weight=3)]], "apart") == [FIRST, SECOND]


def test_splits_and_copies_take_a_records_rows_together(run: Run) -> None:
    chats = [{"messages": [say("user", f"q{n // 2}"), *CHAT[1:]], "id": f"r{n}"} for n in range(60)]
    output = {"keep_fields": ["id"], "splits": {"train": 0.5, "test": 0.5}, "shuffle": {"seed": 3}}
    made = run(config_of("apart", output=output, preprocessing={"deduplicate": {"by": ["messages"]}}), chats)
    found = {split: [row["id"] for row in bp.open(made.output, split=split)] for split in ("train", "test")}
    assert not {*found["train"]} & {*found["test"]}
    ids = found["train"] + found["test"]
    assert sorted(ids) == sorted(2 * [f"r{n}" for n in range(0, 60, 2)])


@pytest.mark.parametrize(("action", "template"), [("$last", "conversation"), ("$role", "message")])
def test_other_sections_are_refused_before_anything_runs(action: str, template: str) -> None:
    section = {"field": "messages", "action": action, "template": template}
    given = {"input": {"sections": [section], "turns": "apart"}, "mask": {"assistant": "train"}}
    with pytest.raises(ConfigError, match=r"input\.turns: found 'apart'; it works only with sections"):
        bp.PipelineConfig.from_dict(given)


WORDS = st.text("abc xyz", min_size=1, max_size=8).filter(str.strip)
TURNS = st.lists(st.tuples(st.sampled_from(["user", "tool", "assistant"]), WORDS, st.none() | WORDS), max_size=6)


@given(turns=TURNS, is_auto=st.booleans())
def test_each_turn_is_trained_once_in_what_transformers_renders(turns: list[Any], is_auto: bool) -> None:
    messages = [say("user", "go"), *(say(role, text, thought) for role, text, thought in turns)]
    messages = [each for place, each in enumerate(messages) if not place or each["role"] != messages[place - 1]["role"]]
    section = bp.Section("messages", "$role", template="conversation")
    output = bp.Output("sequence", "ids", (section,), mask_name="loss_mask")
    rules = bp.TextRules(chat_template=TEMPLATE, turns=TurnsApart(is_auto, {"assistant": "train"}))
    rendered = render_records(bp.testing.records([{"messages": messages}]), (output,), TOKENIZER, None, rules)
    reference = auto(TOKENIZER_PATH)
    prefixes = [
        reference.apply_chat_template(messages[: place + 1], chat_template=TEMPLATE, tokenize=False)
        for place in range(len(messages))
    ]
    answers = [place for place, each in enumerate(messages) if each["role"] == "assistant"]
    pieces = rendered.pieces["sequence"]
    texts = [*pieces.texts]
    if not answers:
        assert texts == [prefixes[-1]]
        return
    if not is_auto:
        assert texts == [prefixes[place] for place in answers]
    assert set(texts) <= {prefixes[place] for place in answers}
    found = []
    for place in range(len(texts)):
        mine = pieces.segments[pieces.borders[place] : pieces.borders[place + 1]]
        found += [int(turn) for turn in mine["turn"] if messages[int(turn)]["role"] == "assistant"]
    assert sorted(found) == answers
