"""Nothing is trained but the answer: generated templates with a known truth, and the cases that were once wrong."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from beam_prep.chat.template import ChatTemplate
from tests.chat import generated_templates as parts
from tests.chat.generated_templates import OWN, Message, Run, Seeded, Template, Turn, const, own, role
from tests.chat.mask_judge import Case, Prefixes, Report, chat_template, draw_cases, judge, truth
from tests.conftest import ROOT

T = TypeVar("T")


def judged(cases: Sequence[Case]) -> Report:
    report = Report()
    chat = chat_template(cases[0].template)
    for case in cases:
        judge(case, report, chat)
    return report


def assert_right(report: Report) -> None:
    assert not report.wrong, "\n\n".join(
        text for kind, texts in report.examples.items() if kind.startswith("wrong") for text in texts[:2]
    )
    assert not report.counts["refused of plain"]


# Generated templates


def test_no_generated_template_gets_a_wrong_span() -> None:
    report = Report()
    for number in range(60):
        report.add(judged(list(draw_cases(Seeded(f"test/{number}"), 24))))
    assert_right(report)
    assert report.pairs == 1440
    assert report.counts["decided"] > 1000
    assert report.counts["refused of decided"] <= 0.12 * report.counts["decided"]


class Drawn:
    """Choices that hypothesis makes, and shrinks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def choice(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(list(options)))

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))


@st.composite
def plain_cases(draw: st.DrawFn) -> Case:
    return next(draw_cases(Drawn(draw), 4, plain=True, size=4))


@settings(suppress_health_check=list(HealthCheck))
@given(plain_cases())
def test_no_plain_template_is_refused(case: Case) -> None:
    assert_right(judged([case]))


# The cases that were once wrong

HEAD = "{% set H = '<|im_start|>assistant\n' %}{% set E = '<|im_end|>\n' %}{% set T = '<think>\n\n</think>\n\n' %}"
CONTROLS = ("<|im_start|>", "<|im_end|>", "<|im_sys|>", "</s>")
PROMPT = "<|im_start|>assistant\n"
THOUGHT = "<think>\n\n</think>\n\n"
CHATML = "{{ '<|im_start|>' + m.role + '\n' + m.content + E }}"


def everyone(turn: str, prompt: str = PROMPT, begin: str = "") -> str:
    """A template that writes all turns in one way."""
    loop = "{% for m in messages %}" + turn + "{% endfor %}"
    return HEAD + begin + loop + "{% if add_generation_prompt %}{{ " + repr(prompt) + " }}{% endif %}"


def answers(turn: str, other: str = CHATML, prompt: str = PROMPT) -> str:
    """A template that writes the assistant's turns in one way, and all others in another."""
    return everyone("{% if m.role == 'assistant' %}" + turn + "{% else %}" + other + "{% endif %}", prompt)


TRAINED = {
    # template, what is trained of the answer "A"
    "plain": (everyone(CHATML), "A<|im_end|>"),
    "a line end before the header, none in the prompt": (
        everyone("{{ '\n<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}"),
        "A<|im_end|>",
    ),
    "a constant turn behind each answer": (
        answers(CHATML + "{{ '<|im_start|>system\nStay polite.' + E }}"),
        "A<|im_end|>",
    ),
    "the next header begun at the end of the turn": (
        everyone("{{ m.role + '\n' + m.content + E + '<|im_start|>' }}", "assistant\n", "{{ '<|im_start|>' }}"),
        "A<|im_end|>",
    ),
    "a header in words, with line ends before it": (
        answers("{{ '\n\n### Response:\n' + m.content + '</s>' }}", "{{ m.content }}", "### Response:\n"),
        "A</s>",
    ),
    "two end tokens": (answers("{{ H + m.content + E + E }}"), "A<|im_end|>"),
    "an EOS at once": (answers("{{ H + m.content + '<|im_end|></s>\n' }}"), "A<|im_end|></s>"),
    "an EOS twice": (answers("{{ H + m.content + '<|im_end|></s></s>\n' }}"), "A<|im_end|></s></s>"),
    "an EOS behind a line end": (answers("{{ H + m.content + E + '</s>' }}"), "A<|im_end|>"),
    "a line end before the end token": (answers("{{ H + m.content + '\n' + E }}"), "A\n<|im_end|>"),
    "an empty think block": (answers("{{ H + T + m.content + E }}"), THOUGHT + "A<|im_end|>"),
    "an empty think block in the prompt too": (
        answers("{{ H + T + m.content + E }}", prompt=PROMPT + THOUGHT),
        "A<|im_end|>",
    ),
    "a second header": (answers("{{ H + H + m.content + E }}"), "<|im_start|>assistant\nA<|im_end|>"),
    "a name": (answers("{{ H + 'name=' + m.name + '\n' + m.content + E }}"), "name=alice\nA<|im_end|>"),
    "the question's length": (
        answers("{{ H ~ messages[0].content | length ~ '\n' ~ m.content ~ E }}"),
        "1\nA<|im_end|>",
    ),
    "a constant behind the answer": (answers("{{ H + m.content + ' Bye.' + E }}"), "A Bye.<|im_end|>"),
    "a constant by what the question says": (
        answers("{{ H + ('Sure. ' if 'q' in messages[0].content else 'No. ') + m.content + E }}"),
        "Sure. A<|im_end|>",
    ),
    "a constant by whether the answer says anything": (
        answers("{{ H + ('Sure. ' if m.content | trim == '' else 'Fine. ') + m.content + E }}"),
        "Fine. A<|im_end|>",
    ),
    "a token of another role before the answer": (
        answers("{{ H + '<|im_sys|>' + m.content + E }}", "{{ '<|im_sys|>' + m.content + E }}"),
        "<|im_sys|>A<|im_end|>",
    ),
    "an empty think block in the prompt alone": (everyone(CHATML, PROMPT + THOUGHT), "A<|im_end|>"),
}
REFUSED = {
    "an analysis turn": answers("{{ H + 'thinking' + E + H + m.content + E }}"),
    "an analysis turn that repeats the question": answers("{{ H + messages[0].content + E + H + m.content + E }}"),
    "a name in the header": answers("{{ '<|im_start|>assistant ' + m.name + '\n' + m.content + E }}"),
    "the question in upper case": answers("{{ H + messages[0].content.upper() + '\n' + m.content + E }}"),
    "the question behind the answer": answers("{{ H + m.content + messages[0].content.upper() + E }}"),
}

CHAT: list[Message] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]
ANSWERED = ["answer one", "<", "a", "Bye", "yes it is", "<think>"]


def spans(source: str, answer: str) -> list[str] | str:
    """What is trained of an answer, or the reason of the refusal."""
    named = {"name": "alice"} if ".name" in source else {}
    messages = [{**CHAT[0], **named}, {"role": "assistant", "content": answer, **named}]
    turn = ChatTemplate(source, {"eos_token": "</s>"}, CONTROLS).render(messages)
    found = turn.turns[1]
    return found.reason[0] if found.reason else [turn.text[begin:end] for begin, end in found.spans]


@pytest.mark.parametrize("name", [*TRAINED, *REFUSED])
def test_what_is_trained_of_the_answer(name: str) -> None:
    for answer in ANSWERED:
        found = spans(REFUSED.get(name) or TRAINED[name][0], answer)
        if name in REFUSED:
            assert isinstance(found, str)
        else:
            assert found == [TRAINED[name][1].replace("A", answer)]


def test_a_question_that_says_nothing_is_not_trained_where_it_comes_again() -> None:
    again = everyone("{{ m.role + ': ' + m.content + '<|im_end|>' + (m.content | tojson) }}")
    silent: list[Message] = [{"role": "user", "content": ""}, CHAT[1]]
    turn = ChatTemplate(again, {}, CONTROLS).render(silent).turns[0]
    assert (turn.spans, turn.reason) == ((), None)


def test_a_question_written_twice_is_refused_where_no_loop_says_whose_turn_that_is() -> None:
    again = "{{ '> ' ~ messages[i - 1].content if i }}{{ m.role + ': ' + m.content + '\n' }}"
    collected = "{% set i = loop.index0 %}{% set piece %}" + again + "{% endset %}{% set ns.t = ns.t ~ piece %}"
    source = "{% set ns = namespace(t='') %}{% for m in messages %}" + collected + "{% endfor %}{{ ns.t }}"
    reason = ChatTemplate(source, {}, CONTROLS).render(CHAT).turns[0].reason
    assert reason is not None
    assert reason[0] == "turn_apart"


def test_the_prompt_of_another_place_is_the_header_where_none_is_written() -> None:
    turn = "{% if m.role != 'user' and loop.last %}{{ H + T + m.content + E }}{% else %}" + CHATML + "{% endif %}"
    source = everyone(turn).replace("if add_", "if messages[-1].role == 'user' and add_")
    rendered = ChatTemplate(source, {}, CONTROLS).render([*CHAT, {"role": "assistant", "content": "And no."}])
    assert [rendered.text[begin:end] for turn in rendered.turns[1:] for begin, end in turn.spans] == [
        "yes<|im_end|>",
        THOUGHT + "And no.<|im_end|>",
    ]


@pytest.mark.parametrize("answer", ["", "yes"])
def test_what_another_says_within_the_turn_is_refused_in_a_loop_over_indices(answer: str) -> None:
    turn = "{% set m = messages[i] %}{{ H + m.content + '> ' }}{{ messages[i - 1].content if i }}{{ E }}"
    loop = HEAD + "{% for i in range(messages | length) %}" + turn + "{% endfor %}"
    source = loop + "{% if add_generation_prompt %}{{ H }}{% endif %}"
    found = ChatTemplate(source, {}, CONTROLS).render([CHAT[0], {"role": "assistant", "content": answer}]).turns[1]
    assert found.spans == ()
    assert bool(found.reason) == bool(answer)


def test_the_next_header_begun_at_the_end_of_the_turn_ends_it_though_an_end_token_follows() -> None:
    turn = "{% if not loop.first %}{{ '<|im_end|>' }}{% endif %}{{ m.role + '\n' + m.content + '\n<|im_start|>' }}"
    source = everyone(turn, "assistant\n", "{{ '<|im_start|>' }}")
    rendered = ChatTemplate(source, {"eos_token": "</s>"}, CONTROLS).render([*CHAT, CHAT[0]])
    ((begin, end),) = rendered.turns[1].spans
    assert rendered.text[begin:end] == "yes\n<|im_start|>"


def test_what_history_has_of_a_prompt_that_is_always_written_is_the_header() -> None:
    turn = "{{ '<|bot|><|say|>' if m.role == 'assistant' else '<|user|>' }}{{ m.content + '<|z|>' }}"
    source = "{% for m in messages %}" + turn + "{% endfor %}{{ '<|bot|><|think|>' }}"
    rendered = ChatTemplate(source, {}, ["<|bot|>", "<|say|>", "<|user|>", "<|z|>"]).render([*CHAT, CHAT[0]])
    ((begin, end),) = rendered.turns[1].spans
    assert rendered.text[begin:end] == "<|say|>yes<|z|>"


def test_the_script_says_what_it_found() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "mask_truth.py"), "--pairs", "192", "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("192 pairs, 8 templates, seed 1, ")


# The truth itself


def by_hand(**changes: Any) -> Template:
    header = [const("<a>", parts.HEADER), role("as is"), const("\n", parts.HEADER)]
    made: dict[str, Any] = {
        "header": header,
        "body": [own("as is")],
        "end": [const("<z>", parts.END)],
        "tail": [const("\n")],
    }
    turn, other = Turn(**{**made, **changes.pop("answer", {})}), Turn(**made)
    given = {"prompt": "<a>assistant\n", "controls": ("<a>", "<z>", "</s>"), "turn_tokens": ("<a>", "<z>", "</s>")}
    return Template("by hand", bos="", eos="</s>", answer=turn, other=other, **{**given, **changes})


@pytest.mark.parametrize(
    ("made", "right"),
    [
        (by_hand(), {"yes<z>"}),
        (by_hand(prompt=""), {"yes<z>"}),
        (by_hand(prompt="\n<a>assistant\n"), {"yes<z>"}),
        (by_hand(prompt="<a>"), {"assistant\nyes<z>", "yes<z>"}),
        (by_hand(answer={"between": [const("...")]}), {"...yes<z>"}),
        (by_hand(answer={"between": [const("...")], "before": [const("\n")]}), {"yes<z>"}),
        (by_hand(answer={"between": [const("<a>")]}), {"yes<z>"}),
        (by_hand(answer={"between": [parts.echo("first", "upper")]}), {"yes<z>"}),
        (by_hand(answer={"suffix": [const(" ")]}), {"yes <z>"}),
        (by_hand(answer={"suffix": [const(".")]}), {"yes"}),
        (by_hand(answer={"end": []}), {"yes"}),
        (by_hand(answer={"end": [const("###", parts.SOFT)]}), {"yes", "yes###"}),
        (by_hand(answer={"end": [const("<z>", parts.END), const("</s>", parts.EOS)]}), {"yes<z></s>"}),
        (by_hand(answer={"tail": [const("\n"), const("</s>")]}), {"yes<z>"}),
        (by_hand(answer={"tail": []}, after=[const("</s>", parts.AFTER)]), {"yes<z>", "yes<z></s>"}),
        (by_hand(answer={"body": [own("first 1")]}), {"y<z>"}),
    ],
)
def test_the_truth_by_hand(made: Template, right: set[str]) -> None:
    shown = made.render(CHAT)
    chat = chat_template(made)
    assert chat.text(CHAT) == shown.text
    assert chat.text(CHAT[:1], add_generation_prompt=True) == made.render(CHAT[:1], True).text
    assert {"|".join(shown.text[start:stop] for start, stop in ranges) for ranges in shown.right(1)} == right


@pytest.mark.parametrize(
    ("made", "right", "mended"),
    [
        (by_hand(), {"yes<z>"}, ""),
        (by_hand(prompt="<a>"), {"assistant\nyes<z>"}, ""),
        (by_hand(answer={"between": [const("...")]}), {"...yes<z>"}, ""),
        (by_hand(answer={"between": [const("<a>")]}), {"<a>yes<z>"}, "begins before the template's words"),
        (
            by_hand(answer={"between": [parts.echo("first", "upper")]}),
            set(),
            "refused alone: another's text is within",
        ),
        (by_hand(answer={"suffix": [const(".")]}), {"yes.<z>"}, "ends behind the template's words"),
    ],
)
def test_the_truth_by_prefixes(made: Template, right: set[str], mended: str) -> None:
    shown = made.render(CHAT)
    found = truth(made, CHAT, 1, shown, Prefixes(made, CHAT, shown.text))
    assert found.decided
    assert found.mended == mended
    assert {shown.text[begin:end] for ((begin, end),) in found.right} == right


def test_reasoning_and_calls_are_the_messages_own() -> None:
    think = parts.reasoning("<think>\n", "\n</think>\n\n", "always", "strip")
    made = by_hand(answer={"body": [think, own("as is", guarded=True), parts.calls("[", "]", "arguments")]})
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    chat = [CHAT[0], {**CHAT[1], "reasoning_content": " hm ", "tool_calls": [call]}]
    shown = made.render(chat)
    assert chat_template(made).text(chat) == shown.text
    said = '<think>\nhm\n</think>\n\nyes[f {"x": 1}]<z>'
    assert [shown.text[start:stop] for ((start, stop),) in shown.right(1)] == [said]
    made.prompt = ""
    assert {shown.text[start:stop] for ((start, stop),) in shown.right(1)} == {said, said.removeprefix("<think>\n")}


def test_an_answer_in_two_places() -> None:
    second = [const("<z>", parts.SOFT), *by_hand().answer.header]
    made = by_hand(answer={"body": [parts.reasoning("", "", "always", "strip"), *second, own("as is")]})
    chat = [CHAT[0], {**CHAT[1], "reasoning_content": "hm"}]
    shown = made.render(chat)
    found = {tuple(shown.text[start:stop] for start, stop in ranges) for ranges in shown.right(1)}
    assert found == {("hm", "yes<z>"), ("hm<z>", "yes<z>"), ("yes<z>",)}


def test_the_truth_of_plain_templates_is_what_their_own_marks_train() -> None:
    report = Report()
    for number in range(30):
        cases = list(draw_cases(Seeded(f"marked/{number}"), 16, plain=True))
        for case in cases:
            case.template.answer.marked = True
        report.add(judged(cases))
    assert_right(report)


def test_the_judge_finds_spans_that_are_a_character_longer_or_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [Case(by_hand(), [[{"role": m["role"], "content": m["content"] * n} for m in CHAT] for n in range(1, 9)])]
    assert not judged(cases).wrong
    right = ChatTemplate.render
    for less, more in ((1, 0), (-1, 0), (0, 1), (0, -1)):

        def moved(self: ChatTemplate, messages: Any, *, _by: tuple[int, int] = (less, more), **named: Any) -> Any:
            rendered = right(self, messages, **named)
            turns = [
                turn._replace(spans=tuple((begin + _by[0], end + _by[1]) for begin, end in turn.spans))
                for turn in rendered.turns
            ]
            return rendered._replace(turns=turns)

        monkeypatch.setattr(ChatTemplate, "render", moved)
        assert sum(judged(cases).wrong.values()) >= 8


def test_runs_know_whose_they_are() -> None:
    (run,) = own("upper").run(parts.Now(CHAT, 1))
    assert run == Run("YES", OWN, 1)
