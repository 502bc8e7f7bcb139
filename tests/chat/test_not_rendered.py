"""What a template does not write: a content or a call rejects its record, tools and reasoning are counted."""

import itertools
import json
from typing import Any

import pytest

import beam_prep as bp
from beam_prep import testing
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.schema import Output, Section, TextRules
from beam_prep.reading.adapters import adapter
from tests.chat.trained import END, HEADER, PROMPT, say
from tests.conftest import ROOT

TOKENIZER = bp.Tokenizer.load(ROOT / "examples" / "tokenizer")
OUTPUT = Output("sequence", "ids", (Section("messages", "$role", "conversation"),), "loss_mask")
CALL = {"type": "function", "function": {"name": "find", "arguments": {"to": "Gent"}}}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}]
HEAD = "{{ tools | tojson if tools else '' }}{% for m in messages %}" + HEADER
THOUGHT = "{{ '<think>' + m.reasoning_content + '</think>' if m.reasoning_content else '' }}"
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' }}{{ c.function.arguments | tojson }}{% endfor %}"
WHOLE = HEAD + THOUGHT + "{{ m.content or '' }}" + CALLS + END + PROMPT
ASKED, ANSWERED = say("user", "How far?"), say("assistant", "Not far.")
INLINE = say("assistant", "<think>so</think>Not far.")
TWO_THOUGHTS = say("assistant", "<think>so</think>Not far. <think>but</think>By bike.")
CALLED = say("assistant", "Look:", tool_calls=[CALL])
THOUGHT_OF = say("assistant", "Not far.", reasoning_content="so")


def called(**call: Any) -> dict[str, Any]:
    """A call in the form of another API."""
    return say("assistant", "Look:", tool_calls=[call])


def without(part: str) -> str:
    """The template that does not write a part."""
    assert part in WHOLE
    return WHOLE.replace(part, "")


def steps(source: str, record: dict[str, Any], **rules: Any) -> tuple[Any, dict[str, int]]:
    """(the trained texts, or reason and message of the reject; what is counted), by the steps of a chain."""
    batch: Any = testing.records([record])
    rendering = bp.ApplyTemplate([OUTPUT], TOKENIZER, rules=TextRules(chat_template=source, **rules))
    for step in (rendering, bp.Tokenize(TOKENIZER), bp.BuildMask({"assistant": "train"})):
        batch = step.step()(batch)
    counted = {name: int(count.sum()) for name, count in batch.counters.items()}
    if not len(batch):
        return (batch.ledger.outcomes[batch.ledger.status[0] - 1][1], batch.ledger.messages[0]), counted
    pairs = zip(batch["sequence"].to_lists()[0], batch["loss_mask"].to_lists()[0], strict=True)
    runs = itertools.groupby(pairs, key=lambda pair: pair[1])
    return [TOKENIZER.decode([token for token, _ in run]) for trained, run in runs if trained], counted


SAYS = "the chat template does not write the {} of 'messages[{}]' ({}): wanted a template that does"
CALLS_ALONE = WHOLE.replace("m.content or ''", "'' if m.tool_calls else m.content")
PARTS = [{"type": "text", "text": text} for text in ("Not", " far")]
FIRST_CALL = WHOLE.replace("in m.tool_calls or []", "in (m.tool_calls or [])[:1]")
FIRST_PART = WHOLE.replace("m.content or ''", "m.content if m.content is string else m.content[0].text")
WITHOUT_INLINE = WHOLE.replace("m.content or ''", "m.content.split('</think>')[-1]")
NO_TOOLS = without("{{ tools | tojson if tools else '' }}")
NAMES = WHOLE.replace(CALLS, "{% for c in m.tool_calls or [] %}{{ c.function }}{% endfor %}")
FLAT = NAMES.replace("{{ c.function }}", "{{ c.name }}{{ c.arguments }}{{ c.function }}")
UNKNOWN_ROLES = WHOLE.replace("in messages %}", "in messages if m.role != 'developer' %}")


@pytest.mark.parametrize(
    ("source", "messages", "lost"),
    [
        (without("{{ m.content or '' }}"), [ASKED, ANSWERED], ("content", 0, "user")),
        (CALLS_ALONE, [ASKED, CALLED], ("content", 1, "assistant")),
        (UNKNOWN_ROLES, [say("developer", "Be brief."), ASKED, ANSWERED], ("content", 0, "developer")),
        (without("{{ c.function.arguments | tojson }}"), [ASKED, CALLED], ("tool_calls[0].arguments", 1, "assistant")),
        (FIRST_CALL, [ASKED, say("assistant", "", tool_calls=[CALL] * 2)], ("tool_calls[1].name", 1, "assistant")),
        (WITHOUT_INLINE, [ASKED, TWO_THOUGHTS], ("content around a second '</think>'", 1, "assistant")),
        (WITHOUT_INLINE.replace("[-1]", "[1]"), [TWO_THOUGHTS], ("content around a second '</think>'", 0, "assistant")),
        (FIRST_PART, [ASKED, say("assistant", PARTS)], ("content[1]", 1, "assistant")),
        (WHOLE, [ASKED, say("assistant", None, refusal="I won't.")], ("refusal", 1, "assistant")),
        (WHOLE, [ASKED, say("assistant", None, tool_plan="I look.", tool_calls=[CALL])], ("tool_plan", 1, "assistant")),
        (WHOLE, [{"role": "user", "parts": [{"text": "How far?"}]}, ANSWERED], ("parts", 0, "user")),
        (WHOLE, [ASKED, say("assistant", "", additional={"calls": [{"name": "x"}]})], ("additional", 1, "assistant")),
        (WHOLE, [ASKED, say("assistant", "", toolInvocations=[{"name": "x"}])], ("toolInvocations", 1, "assistant")),
        (FLAT, [ASKED, called(tool_name="find", arguments={"a": 1})], ("tool_calls[0].tool_name", 1, "assistant")),
        (FLAT, [ASKED, called(name="find", args={"to": "Gent"}, id="a1")], ("tool_calls[0].args", 1, "assistant")),
        (FLAT, [ASKED, called(name="find", arguments=None, args={"a": 1})], ("tool_calls[0].args", 1, "assistant")),
        (NAMES, [ASKED, called(function="find", arguments={"a": 1})], ("tool_calls[0].arguments", 1, "assistant")),
        (FLAT, [ASKED, called(type="custom", custom={"name": "find"})], ("tool_calls[0].custom", 1, "assistant")),
    ],
)  # fmt: skip
def test_a_content_or_a_call_that_is_not_written_rejects_its_record(
    source: str, messages: list[dict[str, Any]], lost: tuple[str, int, str]
) -> None:
    (reason, message), counted = steps(source, {"messages": messages})
    assert (reason, counted) == ("not_rendered", {})
    assert message.startswith(SAYS.format(*lost))
    kept, counted = steps(source, {"messages": messages}, not_rendered="keep")
    assert isinstance(kept, list)
    assert counted["texts_not_written"] >= 1


def test_lists_of_an_empty_message_that_say_nothing_need_not_be_written() -> None:
    of_openai: dict[str, Any] = {"annotations": [{"type": "file"}], "logprobs": {"content": [{"token": "a"}]}}
    for more in (of_openai, {"tags": ["a b"], "files": [], "meta": {"n": "a b"}}):
        record = {"messages": [ASKED, say("assistant", "", **more), ANSWERED]}
        assert steps(WHOLE, record)[0] == ["<|im_end|>", "Not far.<|im_end|>"]


@pytest.mark.parametrize(("name", "role"), [("Assistant ", "assistant"), ("asistant", "assistant"), ("poet", "user")])
def test_a_misspelt_role_is_renamed_to_what_is_meant(name: str, role: str) -> None:
    known = "{% for m in messages if m.role in ['user', 'assistant'] %}" + HEADER + "{{ m.content }}" + END + PROMPT
    (reason, said), _ = steps(known, {"messages": [ASKED, say(name, "Not far.")]})
    assert (reason, f'"roles": {{"{name}": "{role}"}}' in said) == ("not_rendered", True)


def test_a_call_of_another_api_is_taken_where_the_template_writes_it() -> None:
    whole = WHOLE.replace(CALLS, "{{ m.tool_calls | tojson if m.tool_calls else '' }}")
    for call in ({"tool_name": "find", "arguments": {}}, {"name": "find", "args": {"to": "Gent"}}):
        assert steps(whole, {"messages": [ASKED, called(**call)]})[0][0].startswith("Look:[{")
    text, _ = steps(FLAT, {"messages": [ASKED, called(function="find", arguments={"to": "Gent"})]})
    assert text[0].endswith("find<|im_end|>")


@pytest.mark.parametrize(
    ("messages", "tools", "said"),
    [
        ([ASKED, CALLED], [TOOLS[0]["function"]], "a schema of 'tools' has the keys ['name', 'parameters'], wanted"),
        ([ASKED, called(name="find", arguments={})], None, "a call of message 1 has the keys ['name', 'arguments'], "),
        ([ASKED, say("assistant", None, tool_calls=[CALL])], None, None),
    ],
)
def test_a_template_that_fails_on_a_function_says_which_one_has_another_form(
    messages: list[dict[str, Any]], tools: Any, said: str | None
) -> None:
    source = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" + WHOLE
    if said is None:
        source += "{{ raise_exception('too many') }}"
    (reason, message), _ = steps(source, {"messages": messages, "tools": tools})
    assert reason == "template_error"
    assert message.startswith("field 'messages'" + (f" ({said}" if said else ": the chat template raised: too many"))


@pytest.mark.parametrize("blank", ["", " \n", None, []])
def test_what_says_nothing_need_not_be_written(blank: Any) -> None:
    source = WHOLE.replace("in messages %}", "in messages if m.role != 'system' %}")
    assert steps(source, {"messages": [say("system", blank), ASKED, ANSWERED]}) == (["Not far.<|im_end|>"], {})


def test_what_is_kept_is_trained_as_far_as_it_is_written() -> None:
    record = {"messages": [ASKED, CALLED]}
    assert steps(without(CALLS), record, not_rendered="keep")[0] == ["Look:<|im_end|>"]
    wanted = ['find {"to": "Gent"}<|im_end|>'], {"texts_not_written": 2}
    assert steps(without("{{ m.content or '' }}"), record, not_rendered="keep") == wanted


@pytest.mark.parametrize(
    ("source", "record", "counted"),
    [
        (NO_TOOLS, {"messages": [ASKED, ANSWERED], "tools": TOOLS}, "tools_not_written"),
        (WHOLE, {"messages": [ASKED, ANSWERED], "tools": TOOLS}, None),
        (without(THOUGHT), {"messages": [ASKED, THOUGHT_OF]}, "reasoning_not_written"),
        (WHOLE, {"messages": [ASKED, THOUGHT_OF]}, "reasoning_written"),
        (WHOLE.replace("reasoning_content", "reasoning"), {"messages": [ASKED, THOUGHT_OF]}, "reasoning_written"),
        (WHOLE, {"messages": [ASKED, INLINE]}, "reasoning_written"),
        (WITHOUT_INLINE, {"messages": [ASKED, INLINE]}, "reasoning_not_written"),
    ],
)  # fmt: skip
def test_tools_and_reasoning_are_counted(source: str, record: dict[str, Any], counted: str | None) -> None:
    trained, found = steps(source, record)
    last = {f"last_{counted}": 1} if counted == "reasoning_not_written" else {}
    assert found == ({counted: 1, **last} if counted else {})
    assert trained == ["<think>so</think>" * (counted == "reasoning_written") + "Not far.<|im_end|>"]


def test_a_content_with_two_thoughts_is_trained_where_the_template_writes_it() -> None:
    trained, _ = steps(WHOLE, {"messages": [ASKED, TWO_THOUGHTS]})
    assert trained == [f"{TWO_THOUGHTS['content']}<|im_end|>"]


@pytest.mark.parametrize("key", ["tool_plan", "refusal"])
def test_a_text_under_two_keys_is_written_once(key: str) -> None:
    other = WHOLE.replace("m.content or ''", f"m.{key} if m.role == 'assistant' else m.content")
    for source in (WHOLE, other):
        found, _ = steps(source, {"messages": [ASKED, {**CALLED, key: "Look:"}]})
        assert found == ['Look:find {"to": "Gent"}<|im_end|>']


@pytest.mark.parametrize("behind", ["", "\n\n"])
@pytest.mark.parametrize(("calls", "trained"), [([CALL], 'find {"to": "Gent"}<|im_end|>'), ([], "<|im_end|>")])
def test_a_content_that_is_only_reasoning_is_counted_as_reasoning(calls: Any, trained: str, behind: str) -> None:
    source = WITHOUT_INLINE.replace("split('</think>')[-1]", "split('</think>')[-1].strip()")
    thought = "<think>so</think>" + behind
    for rule, content in itertools.product(("reject", "keep"), (thought, [{"type": "text", "text": thought}])):
        messages = [ASKED, say("assistant", content, tool_calls=calls), ASKED, ANSWERED]
        found = steps(source, {"messages": messages}, not_rendered=rule)
        assert found == ([trained, "Not far.<|im_end|>"], {"reasoning_not_written": 1})


def test_the_plain_way_misses_the_same_texts() -> None:
    for source, message in ((FIRST_PART, say("assistant", PARTS)), (WHOLE, say("assistant", None, refusal="I won't."))):
        template = ChatTemplate(source, {"eos_token": "<|im_end|>"}, ["<|im_end|>"])
        found = (template.render([ASKED, message]), template.render_plainly([ASKED, message]))
        assert [[(index, key.partition("[")[0]) for index, key in each.not_rendered] for each in found] == [
            [(1, "content" if message["content"] else "refusal")]
        ] * 2


def test_reasoning_within_a_content_is_no_text_that_the_plain_way_misses() -> None:
    template = ChatTemplate(WITHOUT_INLINE, {"eos_token": "<|im_end|>"}, ["<|im_end|>"])
    assert template.render_plainly([ASKED, INLINE]).not_rendered == []
    assert template.render_plainly([ASKED, say("user", "<think>so</think>")]).not_rendered == [(1, "content")]


KNOWN = HEAD.replace("messages", "messages if m.role in ['system', 'user', 'assistant', 'tool']")


@pytest.mark.parametrize(
    ("role", "known"),
    [("developer", "system"), ("tool-response", "tool"), ("ipython", "tool"), ("Chatbot", "assistant")],
)
def test_a_role_that_the_template_does_not_know_can_be_renamed_as_the_message_says(role: str, known: str) -> None:
    record = {"messages": [say(role, "Be brief."), ASKED, ANSWERED]}
    source = KNOWN + "{{ m.content }}" + END + PROMPT
    (reason, message), _ = steps(source, record)
    assert reason == "not_rendered"
    assert '"keep"' not in message
    given, _ = json.JSONDecoder().raw_decode(message, message.index('"adapter": ') + len('"adapter": '))
    options = {name: value for name, value in given.items() if name != "name"}
    adapted = adapter(given["name"], **options)(record)
    assert adapted == {"messages": [say(known, "Be brief."), ASKED, ANSWERED]}
    assert steps(source, adapted)[0] == ["Be brief.<|im_end|>"] * (known == "assistant") + ["Not far.<|im_end|>"]
    (_, message), _ = steps(source, {"messages": [ASKED, say("tool_call", "{}"), ANSWERED]})
    assert message.endswith("or its call in `tool_calls` of the assistant's message")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (say("assistant", None), "message 1 has a null content; its keys: ['role', 'content']"),
        ({"role": "assistant", "refusal": "No."}, "message 1 has no content; its keys: ['role', 'refusal']"),
    ],
)
def test_a_template_that_fails_says_whether_a_content_is_null_or_absent(message: dict[str, Any], said: str) -> None:
    (reason, told), _ = steps("{{ messages[1].content + '' }}" + WHOLE, {"messages": [ASKED, message]})
    assert (reason, said in told) == ("template_error", True)
