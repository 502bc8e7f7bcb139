"""What is trained of conversations of templates that are put together in tests. With `Chars` a token is a character."""

import itertools
from collections.abc import Sequence
from typing import Any

from beam_prep import testing
from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import ChatFormat
from beam_prep.chat.template import ChatTemplate
from beam_prep.data.schema import Output, Section, TextRules
from beam_prep.tokens.batch import Batch
from beam_prep.tokens.rows import RoleMask, build_mask
from beam_prep.tokens.tokenize import tokenize
from tests.chars import Chars

Message = dict[str, Any]
CONTROLS = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SECTIONS = {
    "$role": (Section("messages", "$role", "conversation"),),
    "$last": (Section("messages", "$last", "conversation"),),
    "train": (Section("messages", "train", "conversation"),),
    "prompt": (Section("prompt", "mask", "conversation"), Section("messages", "train", "conversation")),
}
HEADER = "{{ '<|im_start|>' + m.role + '\n' }}"
END = "{{ '<|im_end|>\n' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML = "{% for m in messages %}" + HEADER + "{{ m.content }}" + END + PROMPT


def each(body: str) -> str:
    """A template that writes all messages in one way."""
    return "{% for m in messages %}" + body + "{% endfor %}"


def called(*names: str, content: Any = "", **more: Any) -> Message:
    """An answer with calls of these functions."""
    functions = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in names]
    return say("assistant", content, tool_calls=functions, **more)


def say(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def talk(*contents: str, system: str | None = None) -> list[Message]:
    """User and assistant in turn."""
    roles = itertools.cycle(["user", "assistant"])
    head = [] if system is None else [say("system", system)]
    return head + [say(role, content) for role, content in zip(roles, contents, strict=False)]


def fresh(source: str, tokens: dict[str, str], controls: Sequence[str] = CONTROLS, form: Any = "auto") -> ChatTemplate:
    """A template that has seen no conversation."""
    return ChatTemplate(source, tokens, controls, None, form)


def prepared(
    template: ChatTemplate,
    rows: Sequence[dict[str, Any]],
    action: str = "$role",
    policy: RoleMask | None = None,
    rules: TextRules | None = None,
    compared: int = 0,
) -> Batch:
    """The rows, rendered, encoded and with their masks."""
    tokens = template.special_tokens
    bos, eos = (tokens.get(name, "") for name in ("bos_token", "eos_token"))
    chat_format = ChatFormat(template, bos=bos, eos=eos, rules=rules or TextRules())
    output = Output("sequence", "ids", SECTIONS[action], "loss_mask")
    rendered = apply_template(testing.records(rows), (output,), chat_format, compared=compared)
    return build_mask(tokenize(rendered, Chars(), None), policy or RoleMask({"assistant": "train"}))


def outcomes(batch: Batch) -> list[Any]:
    """(text, mask) of each row, or the reason why it is none."""
    found: dict[int, Any] = {
        line: batch.ledger.outcomes[status - 1][1] for line, status in enumerate(batch.ledger.status.tolist()) if status
    }
    rows = zip(batch["sequence"].to_lists(), batch["loss_mask"].to_lists(), strict=True)
    for line, (ids, mask) in zip(batch.line.tolist(), rows, strict=True):
        found[line] = "".join(map(chr, ids)), mask
    return [found[line] for line in sorted(found)]


def runs(outcome: Any) -> Any:
    """The trained runs of text of an outcome; a reason as it is."""
    if isinstance(outcome, str):
        return outcome
    pairs = itertools.groupby(zip(*outcome, strict=True), key=lambda pair: pair[1])
    return ["".join(character for character, _ in run) for trained, run in pairs if trained]


def outcome(
    source: str,
    messages: list[Message],
    action: str = "$role",
    policy: RoleMask | None = None,
    controls: Sequence[str] = CONTROLS,
    tokens: dict[str, str] | None = None,
    **variables: Any,
) -> Any:
    """(text, mask) of a conversation, or the reason of its reject; the same when its kind comes again (`replay`)."""
    row = {"prompt": messages[:1], "messages": messages[1:]} if action == "prompt" else {"messages": messages}
    template = fresh(source, TOKENS if tokens is None else tokens, controls)
    found = outcomes(prepared(template, [{**row, **variables}] * 3, action, policy))
    assert found == found[:1] * 3
    return found[0]


def trained(source: str, messages: list[Message], action: str = "$role", **options: Any) -> Any:
    """The trained runs of text of a conversation, or the reason of its reject."""
    return runs(outcome(source, messages, action, **options))


def said(source: str, messages: list[Message], default: Any = "mask", **roles: Any) -> Any:
    """The same, of some roles."""
    return runs(outcome(source, messages, policy=RoleMask(roles or {"assistant": "train"}, default)))
