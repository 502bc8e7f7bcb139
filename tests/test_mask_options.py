"""`mask_options`: which parts of an answer are trained, as text and as exact ids, for templates of several manners."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import beam_prep as bp
from beam_prep.data.schema import PART_KINDS
from beam_prep.errors import ConfigError
from tests.conftest import ROOT, chat_config, says, steps

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
CALLS = (
    "{%- for call in m.tool_calls or [] %}{{- '\n<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}"
    "{%- endfor %}"
)
LAST = (
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
)
HEADER = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}"
REASONING = "{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{%- endif %}{{- m.content or '' }}" + CALLS
END_OF_LOOP = (
    "{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
# Writes all reasoning.
KEEPING = HEADER + "{%- if m.reasoning_content %}" + REASONING + END_OF_LOOP
# Writes only what comes after the last question, as Qwen3 does.
STRIPPING = LAST + HEADER + "{%- if m.reasoning_content and loop.index0 > ns.last %}" + REASONING + END_OF_LOOP
# Generation blocks, which hold the header.
MARKED = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{%- generation %}{{- '<|im_start|>assistant\n' }}"
    "{%- if m.reasoning_content %}" + REASONING + "{{- '<|im_end|>\n' }}{%- endgeneration %}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
PLAIN = HEADER + "{{- m.content }}" + END_OF_LOOP  # knows no reasoning: it is in the content, if anywhere
CALL = {"type": "function", "function": {"name": "far", "arguments": {"to": "Rome"}}}
WRITTEN = '\n<tool_call>\n{"name": "far", "arguments": {"to": "Rome"}}\n</tool_call>'
CHAT = says(user="How far?", assistant="Two miles.") + says(user="And Rome?", assistant="I ask", tool="900 miles")
CHAT += says(assistant="900 miles.")
CHAT[1]["reasoning_content"] = "One and one."
CHAT[3] |= {"reasoning_content": "A call.", "tool_calls": [CALL]}
INLINE = says(user="How far?", assistant="<think>\nOne and one.\n</think>\n\nTwo miles.")
INLINE += says(user="And Rome?", assistant="Far.\n</think>\n\n900 miles.")
THOUGHT, ASKED = "<think>\nOne and one.\n</think>\n\n", "<think>\nA call.\n</think>\n\n"
BEGIN, END = "<|im_start|>assistant\n", "<|im_end|>"


def rendered(template: str, chat: list[Any], options: bp.MaskOptions, action: Any = "$role") -> Any:
    output = bp.Output("ids", "ids", (bp.Section("messages", action, "conversation"),), "mask")
    rules = bp.TextRules(chat_template=template, mask_options=options)
    return bp.ApplyTemplate([output], TOKENIZER, rules=rules).step()(bp.testing.records([{"messages": chat}]))


def segments_of(template: str, chat: list[Any], options: bp.MaskOptions, action: Any = "$role") -> bp.Batch:
    return bp.Tokenize(TOKENIZER).step()(rendered(template, chat, options, action))


def trained(template: str, chat: list[Any], options: bp.MaskOptions, action: Any = "$role") -> list[str]:
    """The trained texts, one for each run of trained tokens."""
    batch = bp.BuildMask({"assistant": "train"}, options=options).step()(segments_of(template, chat, options, action))
    assert len(batch) == 1, batch.ledger.messages
    ids, mask = batch["ids"].flat, batch["mask"].flat
    borders = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])))
    return [TOKENIZER.decode(ids[a:b].tolist()) for a, b in zip(borders[::2], borders[1::2], strict=True)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [THOUGHT + "Two miles." + END, ASKED + "I ask" + WRITTEN + END, "900 miles." + END]),
        ({"tool_calls": "mask"}, [THOUGHT + "Two miles." + END, ASKED + "I ask", END, "900 miles." + END]),
        ({"eos": "mask"}, [THOUGHT + "Two miles.", ASKED + "I ask" + WRITTEN, "900 miles."]),
        ({"reasoning": "mask", "tool_calls": "mask", "eos": "mask"}, ["Two miles.", "I ask", "900 miles."]),
        (
            {"generation_prompt": "train", "reasoning": "drop_history"},
            [BEGIN + "Two miles." + END, BEGIN + ASKED + "I ask" + WRITTEN + END, BEGIN + "900 miles." + END],
        ),
    ],
    ids=json.dumps,
)
def test_each_part_is_trained_as_its_option_says(options: dict[str, Any], wanted: list[str]) -> None:
    assert trained(KEEPING, CHAT, bp.MaskOptions(**options)) == wanted


def test_of_a_text_that_is_trained_as_a_whole_the_masked_parts_are_left_out() -> None:
    (whole,) = trained(KEEPING, CHAT, bp.MaskOptions(), "train")
    runs = trained(KEEPING, CHAT, bp.MaskOptions(reasoning="mask"), "train")
    assert "".join(runs) == whole.replace(THOUGHT, "").replace(ASKED, "")


def test_reasoning_that_the_template_leaves_out_is_counted() -> None:
    options = bp.MaskOptions(reasoning="mask")
    assert trained(STRIPPING, CHAT, options) == ["Two miles." + END, "I ask" + WRITTEN + END, "900 miles." + END]
    counters = {name: int(counts.sum()) for name, counts in segments_of(STRIPPING, CHAT, options).counters.items()}
    assert counters == {"reasoning_written": 1, "reasoning_not_written": 1}
    assert "reasoning_not_written" not in segments_of(KEEPING, CHAT, options).counters
    dropping = bp.MaskOptions(reasoning="drop_history")
    assert segments_of(KEEPING, CHAT, dropping).counters["reasoning_dropped"].tolist() == [1]


@pytest.mark.parametrize(("generation_prompt", "header"), [("template", BEGIN), ("mask", ""), ("train", BEGIN)])
def test_blocks_hold_the_header_unless_it_is_masked(generation_prompt: Any, header: str) -> None:
    options = bp.MaskOptions(reasoning="mask", generation_prompt=generation_prompt)
    answers = ["Two miles.", "I ask" + WRITTEN, "900 miles."]
    runs = trained(MARKED, CHAT, options)
    assert "".join(runs) == "".join(f"{header}{answer}{END}\n" for answer in answers)
    unmasked = bp.MaskOptions(generation_prompt=generation_prompt)
    assert trained(MARKED, CHAT[4:], unmasked) == [f"{header}900 miles.{END}\n"]


def opening(template: str) -> str:
    """The template with a generation prompt that opens the reasoning."""
    return template.replace("assistant\n' }}{%- endif %}", "assistant\n<think>\n' }}{%- endif %}")


def test_a_header_is_trained_or_masked_where_history_lacks_the_end_of_the_generation_prompt() -> None:
    header, rest = "<|im_start|>assistant\n", "One and one.\n</think>\n\nTwo miles." + END
    chat = [{"role": "user", "content": "Hm?"}, {"role": "assistant", "content": "Yes."}, *CHAT[:2]]
    options = bp.MaskOptions(generation_prompt="train")
    assert trained(opening(STRIPPING), chat, options) == [f"{header}Yes.{END}", f"{header}<think>\n{rest}"]
    options = bp.MaskOptions(generation_prompt="mask")
    assert trained(opening(MARKED), chat, options) == [f"Yes.{END}\n", f"{rest}\n"]


def test_a_header_is_trained_where_blocks_hold_the_end_of_the_generation_prompt() -> None:
    behind = "{{- '<|im_start|>assistant\n' }}{%- generation %}"
    template = opening(MARKED).replace("{%- generation %}{{- '<|im_start|>assistant\n' }}", behind)
    (run,) = trained(template, CHAT[:2], bp.MaskOptions(generation_prompt="train"))
    assert run == f"<|im_start|>assistant\n{THOUGHT}Two miles.{END}\n"


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("template", [PLAIN, PLAIN.replace("m.content", "m.content[0].text or m.content")])
def test_reasoning_within_a_content_is_found(template: str, parts: bool) -> None:
    chat = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in INLINE] if parts else INLINE
    assert trained(template, chat, bp.MaskOptions(reasoning="mask")) == ["Two miles." + END, "900 miles." + END]
    dropped = trained(template, chat, bp.MaskOptions(reasoning="drop_history"))
    assert dropped == ["Two miles." + END, "Far.\n</think>\n\n900 miles." + END]


AGAIN = "<think>One.</think>Two <think>again</think> miles."


@pytest.mark.parametrize(
    ("template", "content", "calls", "wanted"),
    [
        (PLAIN.replace("assistant\n' }}", "assistant\n<think>\n' }}"), INLINE[1]["content"], [], ["Two miles." + END]),
        (
            HEADER + CALLS + "{{- m.content }}" + END_OF_LOOP,
            "<think>One.</think>Two",
            [CALL],
            ["\n" + WRITTEN, "Two" + END],
        ),
        (
            HEADER + "{{- m.content.split('</think>')[0] }}{{- '</think>' if '</think>' in m.content }}" + END_OF_LOOP,
            *("<think>One.</think>", [], [END]),
        ),
        (
            HEADER + "{{- m.content.split('</think>', 1)[-1] }}" + END_OF_LOOP,
            *(AGAIN, [], ["Two <think>again</think> miles." + END]),
        ),
    ],
)
def test_reasoning_within_a_content_is_masked_alone(template: str, content: str, calls: Any, wanted: list[str]) -> None:
    chat = [CHAT[0], {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}]
    assert trained(template, chat, bp.MaskOptions(reasoning="mask")) == wanted


CLOSING = "{{- m.content.split('</think>')[0] + ('</think>\n\n' if '</think>' in m.content else '') }}"


@pytest.mark.parametrize("written", ["{{- m.content }}", CLOSING])
def test_calls_directly_behind_reasoning_within_a_content_are_masked(written: str) -> None:
    chat = [CHAT[0], {"role": "assistant", "content": "<think>hm</think>", "tool_calls": [CALL]}]
    begin, end = trained(HEADER + written + CALLS + END_OF_LOOP, chat, bp.MaskOptions(tool_calls="mask"))
    assert (begin.rstrip(), end) == ("<think>hm</think>", END)


def test_an_answer_that_is_not_written_is_the_last_all_the_same() -> None:
    options = bp.MaskOptions(reasoning="mask")
    silent = [*CHAT[:2], *INLINE[2:3], *says(assistant="")]
    batch = segments_of(PLAIN.replace("in messages", "in messages if m.content"), silent, options)
    assert not bp.BuildMask({"assistant": "last"}, options=options).step()(batch)["mask"].flat.any()


WORDS = st.text(st.sampled_from("ab<>/\n think"), max_size=12)


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=3), st.sampled_from([KEEPING, MARKED]))
def test_whatever_the_words_are_the_parts_are_what_the_template_wrote(said: list[Any], template: str) -> None:
    chat = [
        message
        for question, thought, answer in said
        for message in (
            {"role": "user", "content": question},
            {"role": "assistant", "content": f"A{answer}Z", "reasoning_content": thought},
        )
    ]
    block = rendered(template, chat, bp.MaskOptions(generation_prompt="mask"))
    (text,) = block.pieces["ids"].texts
    segments = block.pieces["ids"].segments
    for turn, (_, thought, answer) in enumerate(said):
        own = segments[segments["turn"] == 2 * turn + 1]
        if own["refused"].any():
            continue
        parts = {
            kind: "".join(text[one["start"] : one["stop"]] for one in own[own["kind"] == code])
            for code, kind in enumerate(PART_KINDS)
        }
        written = f"<think>\n{thought}\n</think>\n\n" if thought else ""
        content = f"A{answer}Z"
        inline = content.index("</think>") + 8 if "</think>" in content else 0
        inline += len(content[inline:]) - len(content[inline:].lstrip("\n")) if inline else 0
        assert parts["reasoning"] == written + content[:inline]
        assert parts["content"] == content[inline:]
        assert parts["eos"].strip() == END


def test_reasoning_that_is_written_in_the_turn_of_another_message_rejects_the_record() -> None:
    """A template that repeats the reasoning of an answer in front of the next one."""
    template = (
        "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}{%- if loop.index0 > 1 %}"
        "{{- messages[loop.index0 - 2].reasoning_content or '' }}{%- endif %}{{- m.content + '<|im_end|>\n' }}"
        "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    )
    chat = [*CHAT[:3], {"role": "assistant", "content": "y"}]
    batch = segments_of(template, chat, bp.MaskOptions(reasoning="mask"))
    masked = bp.BuildMask({"assistant": "train"}, options=bp.MaskOptions(reasoning="mask")).step()(batch)
    assert bp.testing.rejects(masked) == [(0, "turn_apart")]


def test_options_work_only_where_the_template_renders_conversations() -> None:
    with pytest.raises(ConfigError, match="mask_options: found an object; it works only with template: 'conversation'"):
        bp.PipelineConfig.from_dict(chat_config(True, mask_options={}))


def test_four_times_the_messages_take_four_times_the_steps() -> None:
    options = bp.MaskOptions(reasoning="mask", generation_prompt="train")
    rendered(KEEPING, CHAT, options)
    few, many = (steps(rendered, KEEPING, CHAT * size, options) for size in (20, 80))
    assert many < 4.5 * few
