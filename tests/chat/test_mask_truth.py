"""Nothing is trained but the answer: generated templates with a known truth, and the cases that were once wrong."""

from collections.abc import Sequence
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from beam_prep.chat.template import ChatTemplate
from tests.chat.generated_templates import Seeded
from tests.chat.mask_judge import Case, Report, chat_template, draw_cases, judge
from tests.chat.trained import CHATML, END, HEADER, PROMPT, called, each, said, say, talk, trained

T = TypeVar("T")


def judged(cases: Sequence[Case]) -> Report:
    report = Report()
    chat = chat_template(cases[0].template)
    for case in cases:
        judge(case, report, chat)
    return report


def assert_right(report: Report) -> None:
    assert not report.counts["wrong"], "\n\n".join(report.examples["wrong"][:2])
    assert not report.counts["refused of plain"]


# Generated templates

ONCE_WRONG = (
    *("101/413", "101/869", "103/8", "103/54", "771/244", "771/3560", "5150/1121", "5150/1666", "5150/2881"),
    *("5150/3531", "8801/2629", "8801/4143", "8802/3910", "9031/41"),
)
"""Seeds of templates of which spans were wrong."""


def test_no_generated_template_gets_a_wrong_span() -> None:
    report = Report()
    for number in (*range(36), *ONCE_WRONG):
        report.add(judged(list(draw_cases(Seeded(f"quick/{number}" if isinstance(number, int) else number), 24))))
    assert_right(report)
    assert report.pairs == 1200
    assert report.counts["decided"] > 700
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


# Cases that were once wrong. More of them: test_spans.py

HEAD = "{% set E = '<|im_end|>\n' %}{% set T = '<think>\n\n</think>\n\n' %}"
PLAIN = "{{ '<|im_start|>' + m.role + '\n' + m.content + E }}"
CHAT = talk("q", "yes")


def test_a_question_that_says_nothing_is_not_trained_where_it_comes_again() -> None:
    again = CHATML.replace(END, "<|im_end|>{{ m.content | tojson }}{% endfor %}")
    assert said(again, talk("", "yes"), user="train") == []


def test_a_question_written_twice_is_refused_where_no_loop_says_whose_turn_that_is() -> None:
    again = "{{ '> ' ~ messages[i - 1].content if i }}{{ m.role + ': ' + m.content + '\n' }}"
    collected = "{% set i = loop.index0 %}{% set piece %}" + again + "{% endset %}{% set ns.t = ns.t ~ piece %}"
    source = "{% set ns = namespace(t='') %}" + each(collected) + "{{ ns.t }}"
    assert said(source, CHAT, user="train") == "turn_apart"


def test_the_prompt_of_another_place_is_the_header_where_none_is_written() -> None:
    answer = "{{ '<|im_start|>assistant\n' + T + m.content + E }}"
    turn = "{% if m.role != 'user' and loop.last %}" + answer + "{% else %}" + PLAIN + "{% endif %}"
    source = HEAD + each(turn) + PROMPT.replace("if add_", "if messages[-1].role == 'user' and add_")
    found = trained(source, [*CHAT, say("assistant", "And no.")], tokens={})
    assert found == ["yes<|im_end|>", "<think>\n\n</think>\n\nAnd no.<|im_end|>"]


def test_the_next_header_begun_at_the_end_of_the_turn_ends_it_though_an_end_token_follows() -> None:
    turn = "{% if not loop.first %}{{ '<|im_end|>' }}{% endif %}{{ m.role + '\n' + m.content + '\n<|im_start|>' }}"
    source = "<|im_start|>" + each(turn) + "{{ 'assistant\n' if add_generation_prompt }}"
    assert trained(source, [*CHAT, CHAT[0]], tokens={"eos_token": "</s>"}) == ["yes\n<|im_start|>"]


def test_what_history_has_of_a_prompt_that_is_always_written_is_the_header() -> None:
    turn = "{{ '<|bot|><|say|>' if m.role == 'assistant' else '<|user|>' }}{{ m.content + '<|z|>' }}"
    controls = ["<|bot|>", "<|say|>", "<|user|>", "<|z|>"]
    found = trained(each(turn) + "{{ '<|bot|><|think|>' }}", [*CHAT, CHAT[0]], tokens={}, controls=controls)
    assert found == ["<|say|>yes<|z|>"]


# The truth itself


def test_the_judge_finds_spans_that_are_a_character_longer_or_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = list(draw_cases(Seeded("moved"), 8, plain=True))
    assert not judged(cases).counts["wrong"]
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
        assert judged(cases).counts["wrong"] >= 8


def test_a_prompt_that_is_written_unless_a_result_comes_last_is_always_the_next_turns() -> None:
    turn = "{{ '<|' + m.role + '|>\n' + m.content + '\n' }}"
    source = each(turn) + "{% if messages[-1].role != 'tool' %}{{ '<|assistant|>\n' }}{% endif %}"
    assert trained(source, CHAT, tokens={}, controls=["<|user|>", "<|assistant|>", "<|tool|>"]) == ["yes"]


def test_a_text_in_pieces_is_not_written_twice() -> None:
    quoted = CHATML.replace("m.content }}", "m.content.split('\n') | join('\n> ') }}")
    assert said(quoted, talk("one\ntwo three", "yes"), user="train") == ["one\n> two three<|im_end|>"]


def collected(turn: str) -> str:
    """A template that writes all at the end: no loop says whose turn a text is."""
    piece = "{% set piece %}" + HEADER + turn + "{% endset %}{% set ns.t = ns.t ~ piece %}"
    return "{% set ns = namespace(t='') %}" + each(piece) + "{{ ns.t }}" + PROMPT


def test_a_turn_that_goes_on_with_other_words_without_a_next_message_is_refused() -> None:
    tail = "{{ '> ' ~ (messages[loop.index].content if not loop.last else '') | length ~ '<|im_end|>\n' }}"
    assert said(collected("{{ m.content }}" + tail), [*CHAT, CHAT[0]]) == "turn_end"


def test_tokens_that_begin_alike_are_no_words_with_which_a_turn_goes_on() -> None:
    call = "{{ '<call>' ~ m.tool_calls[0].function.name ~ '</call>' if m.tool_calls else m.content }}"
    end = "{{ '<call_result>' if m.tool_calls and loop.last else '<call_end>' if not m.tool_calls }}"
    chat = [CHAT[0], called("look"), say("tool", "found"), CHAT[1]]
    controls = ("<|im_start|>", "<call>", "</call>", "<call_result>", "<call_end>")
    found = trained(collected(call + end), chat, controls=controls)
    assert found == ["<call>look</call>", "yes<call_end>"]
