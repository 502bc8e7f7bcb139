"""Nothing is trained but the answer: generated templates with a known truth, and the cases that were once wrong."""

import functools
import itertools
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import hypothesis.strategies as st
import pytest
from beam_prep.core.chat.recorded import plans
from beam_prep.core.chat.template import ChatTemplate
from hypothesis import HealthCheck, given, settings

from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.mask import RoleMask, build_mask
from tests.conftest import ROOT
from tests.core import generated_templates as parts
from tests.core.generated_templates import OWN, Message, Run, Seeded, Template, Turn, const, conversations, own, role
from tests.core.mask_judge import (
    LAST,
    LAST_OF_ROLE,
    PATHS,
    POINTS,
    ROLE,
    Case,
    Reading,
    Real,
    Report,
    draw_cases,
    fault,
    judge,
    render_by,
    show,
)

T = TypeVar("T")


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Any:
    """Plans from the first conversation of a pattern on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
        yield


@functools.cache
def real() -> tuple[Reading, ...]:
    folder = ROOT / "examples" / "tokenizer"
    return Real(folder, "transformers"), Real(folder, "gigatoken")


def assert_right(report: Report) -> None:
    assert not report.wrongs, "\n\n".join(wrong.text for wrong in report.wrongs[:3])


# Generated templates


def test_no_generated_template_gets_a_wrong_mask() -> None:
    report = Report()
    for number in range(65):
        for case in draw_cases(Seeded(f"test/{number}"), 24):
            judge(case, report)
    assert_right(report)
    assert report.pairs == 1560
    for path in PATHS:
        # Plain ones are proven, all of them, and many others.
        assert report.proven[path] >= report.plain[path] > 300
    assert report.made["columns: rendered_as_columns"] > 100
    assert report.made["plans: rendered_by_plans"] > 1000
    assert report.made["jinja: rendered_by_jinja"] == 1560


def test_nor_with_a_real_tokenizer() -> None:
    report = Report()
    for number in range(12):
        for case in draw_cases(Seeded(f"tokens/{number}"), 16, tokens=("<|im_start|>", "<|im_end|>")):
            judge(case, report, real())
    assert_right(report)
    assert report.proven["columns (gigatoken)"] > 50


class Drawn:
    """Choices that hypothesis makes, and shrinks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def choice(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(list(options)))

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return next(draw_cases(Drawn(draw), 4, size=4))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_no_drawn_template_gets_a_wrong_mask(case: Case) -> None:
    report = Report()
    judge(case, report)
    assert_right(report)


# The cases that were once wrong

HEAD = "{% set H = '<|im_start|>assistant\n' %}{% set E = '<|im_end|>\n' %}{% set T = '<think>\n\n</think>\n\n' %}"
CONTROLS = ("<|im_start|>", "<|im_end|>", "<|im_sys|>", "</s>")
PROMPT = "<|im_start|>assistant\n"
THOUGHT = "<think>\n\n</think>\n\n"
CHATML = "{{ '<|im_start|>' + m.role + '\n' + m.content + E }}"
UNPROVEN = "spans_unproven"


def everyone(turn: str, prompt: str = PROMPT, begin: str = "") -> str:
    """A template that writes all turns in one way."""
    loop = "{% for m in messages %}" + turn + "{% endfor %}"
    return HEAD + begin + loop + "{% if add_generation_prompt %}{{ " + repr(prompt) + " }}{% endif %}"


def answers(turn: str, other: str = CHATML, prompt: str = PROMPT) -> str:
    """A template that writes the assistant's turns in one way, and all others in another."""
    return everyone("{% if m.role == 'assistant' %}" + turn + "{% else %}" + other + "{% endif %}", prompt)


PROVEN = {
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
    "an EOS behind a line end": (answers("{{ H + m.content + E + '</s>' }}"), "A<|im_end|>"),
    "a line end before the end token": (answers("{{ H + m.content + '\n' + E }}"), "A\n<|im_end|>"),
    "an empty think block": (answers("{{ H + T + m.content + E }}"), THOUGHT + "A<|im_end|>"),
    "an empty think block in the prompt too": (
        answers("{{ H + T + m.content + E }}", prompt=PROMPT + THOUGHT),
        "A<|im_end|>",
    ),
}
REFUSED = {
    # the same, or it is refused
    "an analysis turn": (answers("{{ H + 'thinking' + E + H + m.content + E }}"), "A<|im_end|>"),
    "an analysis turn that repeats the question": (
        answers("{{ H + messages[0].content + E + H + m.content + E }}"),
        "A<|im_end|>",
    ),
    "a second header": (answers("{{ H + H + m.content + E }}"), "A<|im_end|>"),
    "the answer's first word before it": (
        answers("{{ H + m.content.split(' ')[0] + '\n> ' + m.content.split(' ')[-1] + E }}"),
        "A<|im_end|>",
    ),
    "a name": (answers("{{ H + 'name=' + m.name + '\n' + m.content + E }}"), "A<|im_end|>"),
    "a name in the header": (
        answers("{{ '<|im_start|>assistant ' + m.name + '\n' + m.content + E }}"),
        "A<|im_end|>",
    ),
    "the question in upper case": (
        answers("{{ H + messages[0].content.upper() + '\n' + m.content + E }}"),
        "A<|im_end|>",
    ),
    "the question's length": (
        answers("{{ H ~ messages[0].content | length ~ '\n' ~ m.content ~ E }}"),
        "A<|im_end|>",
    ),
    "the question behind the answer": (answers("{{ H + m.content + messages[0].content.upper() + E }}"), "A"),
    "a constant behind the answer": (answers("{{ H + m.content + ' Bye.' + E }}"), "A"),
    "a constant by what the question says": (
        answers("{{ H + ('Sure. ' if 'q' in messages[0].content else 'No. ') + m.content + E }}"),
        "A<|im_end|>",
    ),
    "a constant by whether the answer says anything": (
        answers("{{ H + ('Sure. ' if m.content | trim == '' else 'Fine. ') + m.content + E }}"),
        "A<|im_end|>",
    ),
    "a constant by two tests of the answer": (
        answers("{{ H + ('Sure. ' if 'e' in m.content or m.content | length > 1 else '') + m.content + E }}"),
        "A<|im_end|>",
    ),
    "a constant by a flag that an earlier loop sets": (
        everyone(
            "{{ H if m.role == 'assistant' else '' }}{{ 'Yes. ' if ns.long and m.role == 'assistant' else '' }}"
            "{{ m.content + E }}",
            begin="{% set ns = namespace(long=false) %}{% for o in messages %}"
            "{% if o.content | length > 4 %}{% set ns.long = true %}{% endif %}{% endfor %}",
        ),
        "A<|im_end|>",
    ),
    "a constant by a test that cannot be traced": (
        answers("{{ H + ('Sure. ' if m.content | wordcount > 2 else 'Fine. ') + m.content + E }}"),
        "A<|im_end|>",
    ),
    "an end by what the answer says": (
        answers("{{ H + m.content + ('</s>' if m.content | length < 3 else E) }}"),
        "A<|im_end|>",
    ),
    "a token of another role before the answer": (
        answers("{{ H + '<|im_sys|>' + m.content + E }}", "{{ '<|im_sys|>' + m.content + E }}"),
        "A<|im_end|>",
    ),
    "an empty think block in the prompt alone": (everyone(CHATML, PROMPT + THOUGHT), "A<|im_end|>"),
}
ASKED = ["question one", "q", "what else is to be said", "Q?", "and more questions", "QUESTION"]
ANSWERED = ["answer one", "<", "a", "Bye", "yes it is", "<think>"]


def masks(source: str, action: str, path: str) -> list[Any]:
    """Per conversation the runs of text that are trained, or the reason of the reject."""
    rows: list[list[Message]] = [
        [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        for asked, answer in zip(ASKED, ANSWERED, strict=True)
    ]
    if ".name" in source:
        rows = [[{**message, "name": "alice"} for message in row] for row in rows]
    made = Template("fixed", CONTROLS, (), "", "</s>", Turn(), Turn(), "")
    chat = ChatTemplate(source, {"eos_token": "</s>"}, plans=path != "jinja")
    case = Case(made, action, rows)
    for _ in range(2):  # plans that jinja has confirmed
        batch = render_by(path, case, chat, POINTS)
    return outcomes(batch, len(rows))


def outcomes(batch: Batch, rows: int) -> list[Any]:
    ledger = batch.ledger
    found: list[Any] = [
        ledger.outcomes[ledger.status[line] - 1][1] if ledger.status[line] else None for line in range(rows)
    ]
    for line, ids, mask in zip(
        batch.line.tolist(), batch["sequence"].to_lists(), batch["loss_mask"].to_lists(), strict=True
    ):
        pairs = itertools.groupby(zip(map(chr, ids), mask, strict=True), key=lambda pair: pair[1])
        found[line] = ["".join(character for character, _ in run) for trained, run in pairs if trained]
    return found


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("action", [ROLE, LAST])
@pytest.mark.parametrize("name", [*PROVEN, *REFUSED])
def test_only_the_answer_is_trained(name: str, action: str, path: str) -> None:
    source, trained = {**PROVEN, **REFUSED}[name]
    for answer, found in zip(ANSWERED, masks(source, action, path), strict=True):
        if name in REFUSED and isinstance(found, str):
            assert found == UNPROVEN
            continue
        right = [trained.replace("A", answer)]
        # `$last` may train blanks behind the end token too, as TRL does.
        blanks = len(found[-1]) - len(found[-1].rstrip()) if action == LAST else 0
        assert found == right or [*found[:-1], found[-1][:-blanks]] == right


@pytest.mark.parametrize("path", PATHS)
def test_a_lone_answer_of_an_index_loop(path: str) -> None:
    """Nothing says where its turn begins: a constant after the generation prompt is neither trained nor left out."""
    loop = "{% for i in range(messages | length) %}{% set m = messages[i] %}"
    for gap, right in (("", [["yes<|im_end|>"]]), ("Answer: ", [UNPROVEN])):
        source = "{{ '<s>' }}" + loop + "{{ '<|im_start|>' + m.role + '\n" + gap + "' + m.content + '<|im_end|>' }}"
        source += "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
        rows: list[list[Message]] = [[{"role": "assistant", "content": "yes"}]]
        case = Case(Template("fixed", CONTROLS, (), "", "</s>", Turn(), Turn(), ""), ROLE, rows)
        chat = ChatTemplate(source, {"eos_token": "</s>"}, plans=path != "jinja")
        assert outcomes(render_by(path, case, chat, POINTS), 1) == right


def test_the_script_says_what_it_found() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "mask_truth.py"), "--pairs", "192", "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("192 pairs, 8 templates, seed 1, ")
    lines = [line.split() for line in done.stdout.splitlines()]
    found = {line[0]: line[-1] for line in lines if line and line[0] in PATHS}
    assert found == dict.fromkeys(PATHS, "0")


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


CHAT: list[Message] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]


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
    chat = ChatTemplate(made.source, {})
    assert chat.render(CHAT) == shown.text
    assert chat.render(CHAT[:1], True) == made.render(CHAT[:1], True).text
    assert {"|".join(shown.text[start:stop] for start, stop in ranges) for ranges in shown.right(1)} == right


def test_reasoning_and_calls_are_the_messages_own() -> None:
    think = parts.reasoning("<think>\n", "\n</think>\n\n", "always", "strip")
    made = by_hand(answer={"body": [think, own("as is", guarded=True), parts.calls("[", "]", "arguments")]})
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    chat = [CHAT[0], {**CHAT[1], "reasoning_content": " hm ", "tool_calls": [call]}]
    shown = made.render(chat)
    assert ChatTemplate(made.source, {}).render(chat) == shown.text
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
        for case in draw_cases(Seeded(f"marked/{number}"), 16, plain=True):
            case.template.answer.marked = True
            if case.action in (ROLE, LAST_OF_ROLE):
                judge(case, report)
    assert_right(report)
    assert report.proven["jinja"] == report.pairs > 200


def test_one_token_more_or_less_is_wrong() -> None:
    """Each right mask of generated conversations, and its neighbours."""
    seen = 0
    for number in range(60):
        draw = Seeded(f"mutants/{number}")
        made = parts.template(draw, plain=True)
        for messages in conversations(draw, made, 2, True):
            shown = made.render(messages)
            text, right = shown.text, shown.right(len(messages) - 1)
            assert len(right) == 1
            ((start, stop),) = right[0]
            for first, last in itertools.product((start - 1, start, start + 1), (stop - 1, stop, stop + 1)):
                if 0 <= first <= last <= len(text):
                    mask = b"\0" * first + b"\1" * (last - first) + b"\0" * (len(text) - last)
                    wanted = "" if (first, last) == (start, stop) else "trains"
                    assert fault(mask, [right])[: len(wanted) or None] == wanted, show(text, mask)
                    seen += 1
    assert seen > 500


def test_the_judge_finds_a_policy_that_trains_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions trained beside answers: wrong on every path."""
    from tests.core import mask_judge

    monkeypatch.setattr(mask_judge, "build_mask", lambda batch, _: build_mask(batch, RoleMask({}, "train")))
    made = by_hand()
    report = Report()
    judge(
        Case(made, ROLE, [[{"role": m["role"], "content": m["content"] * n} for m in CHAT] for n in range(1, 9)]),
        report,
    )
    assert report.wrong == dict.fromkeys(PATHS, 8)


def test_runs_know_whose_they_are() -> None:
    (run,) = own("upper").run(parts.Now(CHAT, 1))
    assert run == Run("YES", OWN, 1)
