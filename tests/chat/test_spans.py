"""Turns whose begin and end are known by hand: constants before, within and behind them, and what refuses them."""

from typing import Any

import pytest

from beam_prep.chat.template import ChatTemplate
from tests.chat.trained import CHATML, CONTROLS, END, HEADER, PROMPT, Message, called, each, fresh, say, talk, trained
from tests.conftest import steps

ASSISTANT, THOUGHT = "<|im_start|>assistant\n", "<think>\n\n</think>\n\n"
OPENED = "<|im_start|>assistant<s>\n"
NOTE = "<|im_start|>note\nBe kind.<|im_end|>\n"


def prompting(prompt: str) -> str:
    """The end of a template with this generation prompt."""
    return "{% if add_generation_prompt %}{{ " + repr(prompt) + " }}{% endif %}"


# Completions of several messages


def test_the_last_messages_weight_is_its_own() -> None:
    messages = [say("user", "q"), say("assistant", "a"), say("user", "r"), say("assistant", "b", weight=0)]
    assert trained(CHATML, messages, "prompt") == ["a<|im_end|>", "r<|im_end|>"]
    messages[2]["weight"] = 0
    assert trained(CHATML, messages, "prompt") == ["a<|im_end|>"]


def test_a_completion_of_several_messages_is_trained_from_the_first_to_the_last() -> None:
    whole = "a<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"
    for content in ("m.content", "'%s' % m.content"):
        assert trained(CHATML.replace("m.content", content), talk("say paris now", "a", "b", "c"), "prompt") == [whole]


@pytest.mark.parametrize("written", ["{{ messages[0].content.split(' ')[1] }} ", "{{ messages[0].content | upper }}"])
def test_words_of_the_prompt_within_an_answer_of_the_completion_refuse_it(written: str) -> None:
    source = CHATML.replace("{{ m.content }}", "{% if loop.index0 == 3 %}" + written + "{% endif %}{{ m.content }}")
    assert trained(source, talk("say paris now", "a", "b", "c"), "prompt") == "turn_apart"
    assert trained(source, talk("say paris now", "a", "b", "c"), "$last") == "turn_apart"
    assert trained(source, talk("say paris now", "a")) == ["a<|im_end|>"]


# What the template writes in a turn

HEAD = "{% set H = '<|im_start|>assistant\n' %}{% set E = '<|im_end|>\n' %}{% set T = '<think>\n\n</think>\n\n' %}"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call>{% endfor %}"
SYSTEM = "{{ '<|im_sys|>' + m.content + E }}"
# How a template writes an answer A, its generation prompt, and what is trained or why it is refused.
BEGINS = [
    ("{{ H + m.content + E }}", ASSISTANT, "A<|im_end|>"),
    ("{{ H + T + m.content + E }}", ASSISTANT, THOUGHT + "A<|im_end|>"),
    ("{{ H + T + m.content + E }}", ASSISTANT + "<think>\n", "\n</think>\n\nA<|im_end|>"),
    ("{{ H + m.content + E }}", ASSISTANT + THOUGHT, "A<|im_end|>"),
    ("{{ H + '</think>\n\n' + m.content + E }}", ASSISTANT + THOUGHT, "A<|im_end|>"),
    ("{{ H + '</think>\n\n' + m.content + E }}", ASSISTANT + "<think>\n", "</think>\n\nA<|im_end|>"),
    ("{{ H + m.content + E }}", "<|im_start|>", "assistant\nA<|im_end|>"),
    ("{{ T + '<|bot|>\n' + m.content + E }}", "<|bot|>\n<think>\n", "A<|im_end|>"),
    ("{{ m.content[-6:] + '\n<|bot|>\n' + m.content + E }}", "<|bot|>\n" + THOUGHT, "turn_begin"),
    ("{{ 'Assistant: ' + m.content + E }}", "Assistant:", " A<|im_end|>"),
    ("{{ H + H + m.content + E }}", ASSISTANT, ASSISTANT + "A<|im_end|>"),
    ("{{ '<|im_start|>note\nBe kind.' + E + H + m.content + E }}", NOTE + ASSISTANT, "A<|im_end|>"),
    ("{{ H + 'name=' + m.name + '\n' + m.content + E }}", ASSISTANT, "name=bob\nA<|im_end|>"),
    ("{{ H ~ messages[0].content | length ~ '\n' ~ m.content ~ E }}", ASSISTANT, "1\nA<|im_end|>"),
    ("{{ H + ('Sure. ' if 'q' in messages[0].content else '') + m.content + E }}", ASSISTANT, "Sure. A<|im_end|>"),
    ("{{ H }}" + SYSTEM, ASSISTANT, "<|im_sys|>A<|im_end|>"),
    ("{{ H + 'thinking' + E + H + m.content + E }}", ASSISTANT, "turn_apart"),
    ("{{ H + (m.thinking ~ E ~ H if m.thinking else '') + m.content + E }}", ASSISTANT, "turn_apart"),
    ("{{ H + messages[0].content + m.content + E }}", ASSISTANT, "turn_apart"),
    ("{{ '<|im_start|>assistant ' + m.name + '\n' + m.content + E }}", ASSISTANT, "turn_begin"),
    ("{{ messages[0].content + E + m.content + E }}", "", "turn_begin"),
    # The prompt's rest is not left out: it stands behind a token that the prompt lacks.
    ("{{ '<|im_start|>assistant<|im_end|><s>\n' + m.content + E }}", OPENED + "<think>\n", "turn_begin"),
    ("{{ '<|im_start|>assistant<|im_start|><s>\n' + m.content + E }}", OPENED + "<think>\n", "turn_begin"),
]
ENDS = [
    ("' Bye.<|im_end|>\n'", "A Bye.<|im_end|>"),
    ("'<|im_end|></s>\n'", "A<|im_end|></s>"),
    ("'<|im_end|></s></s>\n'", "A<|im_end|></s></s>"),
    ("'<|im_end|>\n</s>'", "A<|im_end|>"),
    ("E + '<|im_start|>system\nStay polite.' + E", "A<|im_end|>"),
    ("'<|im_end|>\n<|note|>Thanks.</s>'", "A<|im_end|>"),
    ("'<|im_end|>Now ask.<|note|>'", "A<|im_end|>"),
    ("'<|im_end|> rated good</s>'", "A<|im_end|>"),
    ("'\n'", "A"),
    ("messages[0].content.upper() + E", "turn_end"),
]
TURNS = [*BEGINS, *(("{{ H + m.content + " + end + " }}", ASSISTANT, wanted) for end, wanted in ENDS)]


@pytest.mark.parametrize(("turn", "prompt", "wanted"), TURNS)
def test_what_is_trained_of_an_answer(turn: str, prompt: str, wanted: str) -> None:
    """Behind the generation prompt, as much of it as is written, up to the first end token; or it is refused."""
    other = SYSTEM if "im_sys" in turn else "{{ '<|im_start|>' + m.role + '\n' + m.content + E }}"
    source = HEAD + each("{% if m.role == 'assistant' %}" + turn + "{% else %}" + other + "{% endif %}")
    source += prompting(prompt)
    controls = (*CONTROLS, "<|im_sys|>", "<|note|>")
    for answer in ("answer one", "<", "a", "Bye", "yes it is", "<think>"):
        messages = [say("user", "q"), say("assistant", answer, name="bob", reasoning_content="hm")]
        found = trained(source, messages, controls=controls)
        assert found == (wanted if wanted.startswith("turn_") else [wanted.replace("A", answer, 1)])
    if not wanted.startswith("turn_"):
        assert len(trained(source, [*messages, *messages], controls=controls)) == 2


def test_the_header_of_a_second_answer_is_not_trained_where_the_prompt_only_ends_the_first() -> None:
    end = "{% if add_generation_prompt or not loop.last %}{{ '<|im_end|>\n' }}{% endif %}"
    source = each("{{ '<|im_start|>' + m.role + '\n' + m.content }}" + end)
    prompt = "{{ '<|im_start|>assistant\n' }}"
    source += "{% if add_generation_prompt and messages[-1].role != 'assistant' %}" + prompt + "{% endif %}"
    messages = [say("user", "q"), *(say("assistant", answer) for answer in ("a", "b", "c"))]
    assert trained(source, messages) == ["a<|im_end|>", "b<|im_end|>", "c"]
    assert trained(source, [*messages, *talk("r", "d")]) == ["a<|im_end|>", "b<|im_end|>", "c<|im_end|>", "d"]


def test_an_answer_without_its_reasoning_ends_where_it_does_with_it() -> None:
    template = (
        "{% set made = namespace(turns=[]) %}{% for m in messages %}"
        "{% set said = m.content if loop.last else m.content.split('</think>')[-1] %}"
        "{% set made.turns = made.turns + ['<|im_start|>' ~ m.role ~ '\n' ~ said ~ '<|im_end|>'] %}{% endfor %}"
        "{{ made.turns | join('\n') ~ '\n' }}" + PROMPT
    )
    assert trained(template, talk("q", "<think>a 4</think>4", "r", "b")) == ["4<|im_end|>", "b<|im_end|>"]


def test_a_prompt_that_history_changes_is_not_known_where_it_cannot_be_rendered() -> None:
    source = "{% if messages[-1].role == 'user' %}{{ raise_exception('no answer') }}{% endif %}" + CHATML
    source = source.replace("m.content", "'<note>' + m.content").replace("assistant\n'", "assistant\n<think>\n'")
    assert trained(source, talk("why", "one")) == "turn_begin"


def test_a_prompt_is_known_though_the_template_begins_otherwise_where_it_writes_one() -> None:
    content = "(m.content if m.content is string else m.content | map(attribute='text') | join)"
    source = "{% if add_generation_prompt %}<|im_start|>system<|im_end|>\n{% endif %}"
    source += CHATML.replace("m.content", content)
    parts = [{"type": "text", "text": text} for text in "qr"]
    assert trained(source, [say("user", parts), say("assistant", "a")]) == ["a<|im_end|>"]


def test_a_token_of_the_generation_prompt_ends_no_answer() -> None:
    turn = "{{ m.role + '\n' + m.content + '\n' }}{{ '<|im_start|>' if not loop.last }}"
    template = "{{ '<|im_start|>' }}" + each(turn) + PROMPT
    assert trained(template, talk("q", "a", "r", "b")) == ["a", "b"]


def test_a_template_that_writes_the_descriptions_of_parameters_is_known_with_tools() -> None:
    """As Command R's: on probes without one it would raise, and the text behind the last turn would be its end."""
    described = "{% for n, p in t.function.parameters.properties.items() %}{{ n + p.description }}{% endfor %}"
    turns = each("{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}") + "{{ '<|im_start|>systemBe kind.' }}"
    source = "{% for t in tools or [] %}" + described + "{% endfor %}" + turns + PROMPT
    tool = {"function": {"name": "f", "parameters": {"properties": {"k": {"type": "string", "description": "d"}}}}}
    found = fresh(source, {}).render(talk("q", "a", "r", "b"), tools=[tool])
    assert [found.text[slice(*turn.spans[0])] for turn in found.turns if turn.message % 2] == [
        "a<|im_end|>",
        "b<|im_end|>",
    ]


@pytest.mark.parametrize("result", ["r", ""])
def test_behind_a_call_the_next_header_is_trained_as_behind_an_answer_that_no_token_ends(result: str) -> None:
    """As GLM: `</tool_call>` ends the call, and `<|tool|>` the turn."""
    template = each("<|{{ m.role }}|>{{ m.content }}" + CALLS) + prompting("<|assistant|>")
    controls = ("<|user|>", "<|assistant|>", "<|tool|>", "<call>", "</call>")
    messages = [*talk("q", "a", "s"), called("go"), say("tool", result), called("go")]
    assert trained(template, messages, controls=controls) == ["a<|user|>", "<call>go</call><|tool|>", "<call>go</call>"]


@pytest.mark.parametrize(
    ("form", "prompt", "wanted"),
    [
        ("<|{{ m.role }}|>\n{{ m.content }}", "<|assistant|>\n", ["a<|user|>", "b"]),  # CodeGeeX
        ("{{ 'Bot: ' if m.role == 'assistant' else 'User: ' }}{{ m.content }}<s>", "Bot:", ["a<s>", "b<s>"]),
    ],
)
def test_a_prompt_at_the_end_of_every_conversation_is_not_trained(form: str, prompt: str, wanted: list[str]) -> None:
    controls = ("<|user|>", "<|assistant|>", "<s>")
    assert (
        trained(each(form) + "{{ prompt }}".replace("prompt", repr(prompt)), talk(*"qarb"), controls=controls) == wanted
    )


def test_a_header_that_ends_with_a_word_may_stand_directly_before_the_answers_word() -> None:
    source = each("<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>") + "<|im_start|>assistant"
    messages = [say("user", "q"), say("assistant", "a"), say("assistant", "b"), say("user", "r"), say("assistant", "c")]
    assert trained(source, messages, tokens={}) == ["a<|im_end|>", "b<|im_end|>", "c<|im_end|>"]


def test_the_empty_content_of_a_call_is_part_of_no_header_where_the_template_writes_all_at_its_end() -> None:
    """As Reka Edge: the prompt opens the reasoning, which history leaves out."""

    def add(text: str) -> str:
        return "{% set w.text = w.text ~ " + text + " %}"

    calls = "{% for c in m.tool_calls or [] %}" + add("'<call>' ~ c.function.name ~ '</call>'") + "{% endfor %}"
    message = add("'<|im_start|>' ~ m.role ~ '\n' ~ m.content") + calls + add("'<|im_end|>\n'")
    source = "{% set w = namespace(text='') %}" + each(message)
    source += "{{ w.text }}" + prompting("<|im_start|>assistant\n<think>\n")
    messages = [*talk("q", "a", "r"), called("go"), say("tool", "x"), say("assistant", "b")]
    assert trained(source, messages) == ["a<|im_end|>", "<call>go</call><|im_end|>", "b<|im_end|>"]


@pytest.mark.parametrize("header", ["<|im_start|>assistant\n", ""])
@pytest.mark.parametrize("opened", ["", "<channel>thought\n</channel>"])
def test_a_call_that_the_template_joins_to_the_answer_before_it_is_trained(header: str, opened: str) -> None:
    """As Gemma 4, and Mistral, which has no header: no end token stands between the two messages of the assistant."""
    source = (
        "{% for m in messages %}{% set before = loop.previtem.role if not loop.first else '' %}"
        "{% if m.role != 'assistant' %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% else %}"
        "{% if before != 'assistant' %}HEADER{% endif %}{{ m.content }}" + CALLS + "{% if loop.last or "
        "loop.nextitem.role != 'assistant' %}</s>{% endif %}{% endif %}{% endfor %}"
    ).replace("HEADER", header)
    source += prompting(header + opened) if header else ""
    messages = [*talk("q", "a"), called("go"), say("tool", "r"), say("assistant", "b")]
    controls = (*CONTROLS, "<call>", "</call>", "<channel>", "</channel>")
    assert "".join(trained(source, messages, controls=controls)) == "a<call>go</call></s>b</s>"
    ended = source.replace("{{ m.content }}", "{{ m.content }}</s>")
    assert trained(ended, messages, controls=controls) in ("turn_begin", "turn_apart")


@pytest.mark.parametrize("end", ["<|im_end|>", "<|im_end|></s>"])
@pytest.mark.parametrize("between", ["<|im_end|><sep>", "</s><sep>", "<sep>", "<sep>again\n", " Done.<sep>"])
@pytest.mark.parametrize("call", [False, True])
def test_what_is_between_two_answers_is_trained_only_if_it_opens_the_call(end: str, between: str, call: bool) -> None:
    """An end token stops the model there, and it writes no separator and no header; so the record is refused."""
    source = (
        "{% for m in messages %}{% set before = loop.previtem.role if not loop.first else '' %}"
        "{% if m.role != 'assistant' %}" + HEADER + "{{ m.content + '<|im_end|>\n' }}{% else %}"
        "{% if before != 'assistant' %}" + HEADER + "{% else %}{{ BETWEEN }}{% endif %}"
        "{{ m.content }}" + CALLS + "{% if loop.last or "
        "loop.nextitem.role != 'assistant' %}{{ END }}{% endif %}{% endif %}{% endfor %}" + PROMPT
    ).replace("END", repr(end))
    second = called("go") if call else say("assistant", "b")
    messages, controls = [*talk("q", "a"), second], (*CONTROLS, "<call>", "</call>", "<sep>")
    assert trained(source.replace("BETWEEN", repr(between)), messages, controls=controls) == "turn_begin"
    joined = "<call>go</call>" if call else "b"
    assert trained(source.replace("BETWEEN", "''"), messages, controls=controls) == ["a" + joined + end]


def test_the_end_of_an_answer_is_known_though_the_template_repeats_the_answer_behind_it() -> None:
    source = CHATML.replace(END, "<|im_end|>\n{{ '> ' ~ m | tojson if m.role == 'assistant' }}{% endfor %}")
    assert trained(source, talk("q", "a", "r", "b")) == "turn_apart"


@pytest.mark.parametrize("thought", ["", "<|open|>think<|sep|>hm<|close|>think<|sep|>"])
def test_a_token_that_also_closes_parts_of_a_turn_does_not_end_it(thought: str) -> None:
    controls, end = ("<|open|>", "<|close|>", "<|sep|>", "<|end|>"), "<|close|>message<|sep|><|end|>"
    prompt = f"<|open|>message assistant<|sep|>{(thought or '<|open|>answer<|sep|>').partition('hm')[0]}"
    part = "{{ '" + thought + "<|open|>answer<|sep|>' + m.content + '<|close|>answer<|sep|>' }}"
    written = f"{{% if m.role == 'assistant' %}}{part}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
    source = each("<|open|>message {{ m.role }}<|sep|>" + written + end)
    source += prompting(prompt)
    begin = "hm<|close|>think<|sep|><|open|>answer<|sep|>" if thought else ""
    wanted = [f"{begin}{answer}<|close|>answer<|sep|>{end}" for answer in "ab"]
    assert trained(source, talk("q", "a", "r", "b"), controls=controls) == wanted


def test_the_end_of_plain_answers_that_ends_what_the_template_says_behind_another_end_is_not_the_answers() -> None:
    behind = "{{ '<|cut|>\n<|im_start|>note\nCut off.<|im_end|>\n' if m.cut else '<|im_end|>\n' }}"
    source = each(HEADER + "{{ m.content }}" + behind) + PROMPT
    messages = [say("user", "q"), say("assistant", "a", cut=True), say("user", "r"), say("assistant", "b")]
    assert trained(source, messages, controls=(*CONTROLS, "<|cut|>")) == ["a<|cut|>", "b<|im_end|>"]


@pytest.mark.parametrize("question", ["", "r"])
def test_the_end_token_of_a_blank_message_is_not_the_answers(question: str) -> None:
    template = each("{{ m.content + '</s>' if m.role == 'user' else 'A:' + m.content }}") + prompting("A:")
    assert trained(template, talk("q", "a", question, "b")) == ["a", "b"]


def test_of_two_tokens_the_longer_one_is_meant() -> None:
    template = CHATML.replace("<|im_end|>", "<|im_end|>x")
    controls = ("<|im_end|>", "<|im_end|>x", "<|im_start|>")
    assert trained(template, talk("q", "a"), controls=controls) == ["a<|im_end|>x"]


# Contents that are taken apart, or computed


@pytest.mark.parametrize(
    ("content", "given", "wanted"),
    [
        ("m.content.split('|')[0] + '-' + m.content.split('|')[-1]", "a|b", "a-b"),
        ("m.content.replace('X', '<|im_end|>')", "aXb", "a<|im_end|>b"),
        ("'%s!' % m.content", "a", "a!"),
        ("m.content | list | join('.')", "abc", "a.b.c"),
        ("(m.content ~ '!') | trim", " a ", "a !"),
    ],
)  # fmt: skip
def test_a_content_that_the_template_changes_is_trained_as_it_writes_it(content: str, given: str, wanted: str) -> None:
    source = CHATML.replace("m.content", f"({content} if m.role == 'assistant' else m.content)")
    assert trained(source, talk("q", given)) == [wanted + "<|im_end|>"]
    assert trained(source, talk("q", given, "r", given)) == [wanted + "<|im_end|>"] * 2


def test_blocks_of_an_index_loop_belong_to_the_message_that_they_hold() -> None:
    template = (
        "{% for i in range(messages | length) %}{% set m = messages[i] %}{{ m.role }}:"
        "{% if m.role == 'assistant' and i == messages | length - 1 %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% generation %}{{ '</s>' }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %};{% endfor %}"
    )
    messages = [*talk("q", "a", "r", "b")]
    messages[1]["weight"] = 0  # and not the first half of the last answer's
    assert trained(template, messages) == ["b</s>"]


@pytest.mark.parametrize(
    ("written", "prompt", "spans"),
    [
        # The prompt is longer than what history has.
        ("{% if m.content %}{{ m.content }}{% endif %}", "<think>\n", ["<|im_end|>"]),
        # The turn's own header holds special tokens, and the empty text has no origin.
        ("{{ '<s>' if m.role == 'assistant' }}{{ m.content or '' }}", "", ["<s><|im_end|>"]),
    ],
)
def test_an_empty_answer_ends_with_what_ends_a_plain_one(written: str, prompt: str, spans: list[str]) -> None:
    source = CHATML.replace("{{ m.content }}", written).replace("assistant\n' }}", "assistant\n" + prompt + "' }}")
    assert trained(source, talk("q", "")) == spans


def test_a_block_of_marks_around_blanks_is_not_that_of_an_earlier_answer() -> None:
    written = "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    source = each(HEADER + "{% if m.role == 'assistant' %}" + written + "{% else %}{{ m.content }}</s>{% endif %}")
    assert trained(source, talk("q", "z", " ", " ")) == ["z<|im_end|>", " <|im_end|>"]


# What generated templates found

BARE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<answer>{% else %}[INST] {{ m.content }} [/INST]{% endif %}"
)


@pytest.mark.parametrize("more", ["", " It is by the sea."])
def test_words_before_an_end_are_nobodys_where_no_prompt_is_known(more: str) -> None:
    source = BARE.replace("<answer>", "{{ m.content }}system\nStay polite.</s>") + "{% endfor %}"
    assert trained(source, talk("Where?", "Here." + more)) == "turn_end"
    for end in (" ", "\n\n### End\n"):  # one word may be a part of the end
        short = source.replace("system\nStay polite.", end)
        assert trained(short, talk("Where?", "Here." + more)) == [f"Here.{more}{end}</s>"]


ENDED = "<|im_end|>" + each(HEADER + "{{ m.content }}<|im_start|><|im_end|>\n") + PROMPT
RULED = each("{{ '---\n' if loop.index0 }}{{ m.role }}22: {{ m.content }}|") + prompting("---\nassistant:")
NOTED = each("{{ '<a>' if m.role == 'assistant' else '<u>' }}{{ m.content }}{{ '[end]' if not loop.last }}")
NOTED += prompting("<a>")
NAMED = each("{{ '[' + m.role + ('\n' if 'x' in m.content else '') + ']' + m.content + '</s>' }}")


@pytest.mark.parametrize(
    ("source", "messages", "wanted"),
    [
        (ENDED, talk("q", "a", "r", "b"), ["a<|im_start|><|im_end|>", "b<|im_start|><|im_end|>"]),
        (RULED, [say("system", "s"), say("assistant", "a"), say("assistant", "b")], "turn_begin"),
        (NOTED, talk("q", "a", "r", "b"), ["a", "b"]),
        (NAMED, talk("q", "x"), "turn_begin"),
    ],
)
def test_what_a_template_writes_elsewhere_too_is_no_answers(source: str, messages: list[Message], wanted: Any) -> None:
    assert trained(source, messages, tokens={}, controls=(*CONTROLS, "<u>", "<a>")) == wanted


# Empty texts

WITHIN = (  # the result of a tool stands in the model's turn, and the message of the tool writes nothing
    "{% for m in messages if m.role != 'tool' %}"
    "{{ '<|im_start|>' + m.role + '\n' if not (loop.previtem and loop.previtem.tool_calls) }}{{ m.content or '' }}"
    "{% if m.tool_calls %}[call {{ m.tool_calls[0].function.name }}]</s>"
    "{% if messages | length > 2 %}[result: '{{ messages[2].content }}']<s>{% endif %}"
    "{% else %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("result", ["four", "", " \n", None])
def test_an_empty_result_within_the_models_turn_is_not_trained(result: str | None) -> None:
    messages = [say("user", "q"), called("now"), say("tool", result), say("assistant", "late")]
    assert trained(WITHIN, messages) == ["[call now]</s>", "late<|im_end|>"]
    assert trained(WITHIN, messages[:3]) == ["[call now]</s>"]


@pytest.mark.parametrize(
    ("between", "goes_on"), [("<s>", True), ("</s> <s>", True), ("<s>\n", False), ("", False), ("</s><s>", False)]
)
def test_what_the_model_says_behind_a_result_begins_after_a_lone_token(between: str, goes_on: bool) -> None:
    answer = called("now", content="a", reasoning_content="why ")
    source = WITHIN.replace("<s>{% endif %}", between + "{{ m.reasoning_content }}{% endif %}")
    found = trained(source, [say("user", "q"), answer, say("tool", "four"), say("assistant", "late")])
    assert found == (["a[call now]</s>", "why late<|im_end|>"] if goes_on else "turn_begin")


def test_an_opening_that_history_leaves_out_is_left_out_behind_a_result_too() -> None:
    source = (
        "{% for m in messages %}{% set p = messages[loop.index0 - 1].role if loop.index0 else '' %}"
        "{{ '<|im_start|>' + m.role + '\n' if 'tool' not in (p, m.role) }}{{ m.content }}"
        "{{ m.tool_calls[0].function.name if m.tool_calls }}"
        "{{ '<|im_end|>\n' if m.role != 'tool' and not m.tool_calls }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\n' if messages[-1].role != 'tool' }}<s>thought</s>{% endif %}"
    )
    messages = [say("user", "q"), called("now", content="a"), say("tool", "[four]"), say("assistant", "b")]
    assert trained(source, messages, tokens={}) == ["anow", "b<|im_end|>"]


def test_an_opening_that_is_the_whole_prompt_behind_a_result_may_be_left_out() -> None:
    """Gemma 4 with `enable_thinking`: the turn goes on behind a result, and history has no reasoning."""
    source = (
        "{% set last = namespace() %}{% for m in messages %}{% if m.role == 'tool' %}[{{ m.content }}]{% else %}"
        "{{ '<|im_start|>' + m.role + '\n' if last.role != 'tool' }}"
        "{{ '<think>so\n' + m.thinking + '</think>' if m.thinking and loop.last }}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{% endfor %}"
        "{{ '<|im_end|>' if not m.tool_calls }}{% endif %}{% set last.role = m.role %}{% endfor %}"
        "{{ ('<think>so\n' if last.role == 'tool' else '<|im_start|>assistant\n') if add_generation_prompt }}"
    )
    messages = [say("user", "q"), called("now"), say("tool", "four"), say("assistant", "a"), *talk("r", "b")]
    assert trained(source, messages, tokens={}) == ["<call>now", "a<|im_end|>", "b<|im_end|>"]


@pytest.mark.parametrize(
    ("behind", "headed", "instead"),
    [
        ("{{ '<|im_end|>\n' if loop.last }}", ["user", "tool"], ""),  # Bielik 3: this end is not in the history
        ("", ["user"], "</think>"),  # DeepSeek-V3.2
    ],
)
def test_an_opening_is_left_out_before_a_call_behind_a_result(behind: str, headed: list[str], instead: str) -> None:
    header = f"{{{{ '<|im_start|>assistant\n' if ROLE in {headed} }}}}"
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}[{{ m.content }}]\n" + behind + "{% elif m.role == 'user' %}"
        "<|im_start|>user{{ m.content }}{% else %}" + header.replace("ROLE", "loop.previtem.role") + "{{ '<think>' +"
        " m.thinking + '</think>' if m.thinking and loop.last else '" + instead + "' }}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}call {{ c.function.name }}{% endfor %}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}" + header.replace("ROLE", "messages[-1].role") + "<think>{% endif %}"
    )
    call = called("now")
    messages = [say("user", "q"), call, say("tool", "four"), call, say("tool", "five"), say("assistant", "a")]
    wanted = [f"{instead}{text}<|im_end|>" for text in ("call now", "call now", "a")]
    assert trained(source, messages, tokens={}) == wanted


def test_a_header_whose_last_token_the_prompt_spells_otherwise_is_refused() -> None:
    """NeMo RL's config for reward models: `<|end_header_id>` in the prompt."""
    source = each("<|im_start|>{{ m.role }}<s>\n{{ m.content }}<|im_end|>") + prompting(OPENED.replace("s>", "s|>"))
    assert trained(source, talk("q", "a", "r", "b"), tokens={}) == "turn_begin"


def test_an_empty_answer_at_the_end_is_trained_up_to_its_end() -> None:
    """Also where the template looked through all messages before."""
    source = "{% set found = namespace(n=0) %}<s>{% for m in messages %}{% set found.n = found.n + 1 %}{% endfor %}"
    source += CHATML.replace("{{ m.content }}", "{{ '<think></think>' if m.role == 'assistant' }}{{ m.content }}")
    for contents in (("q", "a", "r", ""), ("q", "", "r", "a")):
        wanted = [f"<think></think>{content}<|im_end|>" for content in contents[1::2]]
        assert trained(source, talk(*contents)) == wanted


def test_an_empty_answer_ends_with_its_end_token_where_its_header_goes_on_behind_the_prompt() -> None:
    source = CHATML.replace("{{ m.content }}", "{{ '<s>final\n' + (m.content or '') }}")
    source = source.replace("'<|im_end|>\n'", "'</s>' if loop.last and not add_generation_prompt else '<|im_end|>'")
    wanted = ["<s>final\n<|im_end|>", "<s>final\nb</s>"]
    assert trained(source, talk("q", "", "r", "b"), tokens={"eos_token": "</s>"}) == wanted


def test_an_empty_answer_is_not_trained_from_its_header_where_the_prompt_has_none() -> None:
    think = PROMPT.replace("<|im_start|>assistant\n", "\n<think>\n\n</think>\n\n")
    source = CHATML.replace(PROMPT, think).replace("m.content", "m.content | trim")
    assert trained(source, talk("q", " \n")) == []
    assert trained(source, talk("q", "a")) == "turn_begin"


def test_an_empty_answer_behind_a_header_that_goes_on_otherwise_than_the_prompt_is_not_trained() -> None:
    source = CHATML.replace("m.content", "m.content or ''")
    source = source.replace("m.role + '\n'", "m.role + ('<|im_end|> \n' if m.role == 'assistant' else '\n')")
    assert trained(source, talk("q", "")) == []
    assert trained(source, talk("q", "a")) == "turn_apart"


def test_an_answer_that_is_written_as_json_and_again_as_text_is_no_turn_in_pieces() -> None:
    """Also if the template writes another message's text between both."""
    again = "{{ m | tojson + messages[0].content + '<|im_end|><|im_start|>assistant\n' if m.role == 'assistant' }}"
    source = CHATML.replace("{{ m.content }}", again + "{{ m.content }}")
    for question in (" ", "q"):
        assert trained(source, talk(question, "a")) == "turn_apart"


# A greeting


@pytest.mark.parametrize("opening", ["", "<think>\n", "<think>\n\n</think>\n\n"])
def test_an_answer_before_the_first_question_is_trained(opening: str) -> None:
    """The prompt cannot be rendered there, and may open a reasoning that history lacks."""
    source = "{% set first = messages[0].role %}" + CHATML.replace(PROMPT, prompting(ASSISTANT + opening))
    messages = [say("assistant", "hello"), say("user", "q"), say("assistant", "a")]
    assert trained(source, messages)[0] == "hello<|im_end|>"


def test_an_answer_before_the_first_question_is_trained_behind_what_the_template_writes_before_it() -> None:
    """As EXAONE Deep: with `<think>` in the prompt alone, and an empty system message before the first message."""
    source = "{% for m in messages %}{{ '<s>system<|im_end|>' if loop.first else '\n' }}<|im_start|>{{ m.role }}:"
    source += "{{ m.content }}{{ '<|im_end|>' if m.role == 'assistant' }}{% endfor %}"
    source += prompting("\n<|im_start|>assistant:<think>\n")
    messages = [say("assistant", "a"), *talk("q", "b")]
    assert trained(source, messages, tokens={}) == ["a<|im_end|>", "b<|im_end|>"]


def test_a_template_that_writes_the_messages_backwards_trains_none_of_them() -> None:
    source = CHATML.replace("in messages", "in messages[::-1]")
    # No other message has words, so only other conversations show the order.
    for messages in (talk("q", "a"), talk("", "a"), talk("", "a", "", "b")):
        assert trained(source, messages) == "turn_apart"


def test_a_message_of_which_the_template_writes_no_character_is_refused() -> None:
    body = "{{ m.role + ':' }}{% if loop.index0 == 1 %}{{ messages[0].content | trim }}{% endif %}"
    template = ChatTemplate(each(body + "{{ m.content.split(' ')[0] + ' ' }}"), {}, CONTROLS)
    turn = template.render(talk(" x", "a b")).turns[0]
    assert (turn.spans, turn.reason and turn.reason[0]) == (((5, 5),), "turn_unplaced")


# Long conversations

NUMBERED = each(
    HEADER + "{{ '<call>[' ~ loop.index ~ '] ' ~ m.tool_calls[0].function.name if m.tool_calls else m.content }}"
    "{{ '<|im_end|>\n' }}"
)
RESULTS_IN_TURN = each(
    "{% set before = loop.previtem.role if loop.index0 else '' %}{% if m.role != 'tool' %}"
    "{{ '<|im_start|>' + m.role + '\n' if before != 'tool' }}{{ m.content }}"
    "{{ '<s>' + m.tool_calls[0].function.name + '</s>' if m.tool_calls else '<|im_end|>\n' }}"
    "{{ '<s>[' + loop.nextitem.content + ']' if m.tool_calls and not loop.last }}{% endif %}"
)
PROMPT_BEHIND_QUESTIONS = PROMPT.replace(" %}", " and messages[-1].role != 'tool' %}", 1)


OPENING = "{% set ns = namespace(opening='') %}{% for m in messages %}"
FAST = "{% if m.role == 'user' %}{% set ns.opening = 'fast\n' if m.content == 'fast' else '' %}{% endif %}"
COUNTED = (
    "{% set ns = namespace(answers=0) %}{% for m in messages %}{% if m.role == 'user' %}{{ '<s>' + m.content }}"
    "{% else %}{{ '<|im_start|>' ~ ns.answers ~ ': ' ~ m.content }}{% set ns.answers = ns.answers + 1 %}"
    "{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>' ~ ns.answers ~ ': ' }}{% endif %}"
)
MODES = (
    OPENING + FAST + HEADER + "{{ ns.opening if m.role == 'assistant' }}{{ m.content }}" + END
    + PROMPT.replace("{% endif %}", "{{ ns.opening + '<think>\n' }}{% endif %}")
)  # fmt: skip
WORDS = each(HEADER + "{{ 'Words: ' if m.content | length > 90 }}{{ m.content }}{{ '<|im_end|>\n' }}")


@pytest.mark.parametrize(
    ("source", "messages", "spans"),
    [
        (COUNTED, talk(*"qa" * 11), ["a<|im_end|>"] * 11),  # 0 is a number like 10
        (MODES, talk("fast", "a", "fast", "<think>\nb</think>c"), ["a<|im_end|>", "b</think>c<|im_end|>"]),
        (
            WORDS,
            [say("user", "q"), say("assistant", "a" * 99, name="x"), *talk("q", "a" * 99)],
            [f"Words: {'a' * 99}<|im_end|>", "turn_begin"],
        ),
    ],
)
def test_the_header_of_one_turn_is_not_taken_for_another_one(
    source: str, messages: list[Message], spans: list[str]
) -> None:
    found = fresh(source, {}).render(messages)
    turns = [turn for turn in found.turns if turn.message % 2]
    assert [turn.reason[0] if turn.reason else found.text[slice(*turn.spans[0])] for turn in turns] == spans


WITHOUT_CALLS = each("{% if m.content %}" + HEADER + "{{ m.content }}" + "{{ '<|im_end|>\n' }}{% endif %}") + PROMPT
CLOSED = each(HEADER + "{{ m.content }}</s>") + PROMPT


@pytest.mark.parametrize(
    ("source", "turn"),
    [
        (CHATML, [say("user", "q"), say("assistant", "a")]),
        (NUMBERED + PROMPT, [called("find"), say("tool", "four")]),
        (RESULTS_IN_TURN + PROMPT_BEHIND_QUESTIONS, [called("find"), say("tool", "four")]),
        (WITHOUT_CALLS, [called("find"), say("tool", "four")]),
        (CLOSED, [say("user", "q"), say("assistant", "one</s>two")]),
    ],
    ids=["answers", "numbered calls", "results in the turn", "calls that are not written", "end tokens in answers"],
)
def test_four_times_the_messages_take_four_times_the_steps(source: str, turn: list[Message]) -> None:
    template = fresh(source, {"eos_token": "</s>"})
    template.render([say("user", "q"), *turn])
    few, many = (steps(template.render, [say("user", "q"), *turn * size]) for size in (20, 80))
    assert many < 4.5 * few


def test_the_rest_of_a_text_is_not_cut_into_tokens() -> None:
    tokens = fresh(CHATML, {}).tokens
    few, many = (steps(tokens.whole, "a <s> b" * size, 0, 5) for size in (1, 100))
    assert (tokens.whole("a <s> b" * 9, 0, 4), tokens.whole("a <s> b" * 9, 0, 5)) == (2, 5)
    assert many == few
