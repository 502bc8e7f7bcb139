"""The trained text of a conversation by every path, for templates that are put together here."""

import itertools
from typing import Any

from beam_prep.core.chat.template import ChatTemplate
from beam_prep.core.data.columns import Wanted
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.voice import Voice

from beam_prep.core.data.schema import Output, Section
from beam_prep.core.tokens.mask import RoleMask, build_mask
from beam_prep.core.tokens.tokenize import tokenize
from tests.core.chat.test_conversation import CONTROLS, TOKENS
from tests.core.mask_judge import PATHS, POINTS, records

SECTIONS = {
    "$role": (Section("messages", "$role", "conversation"),),
    "$last": (Section("messages", "$last", "conversation"),),
    "prompt": (Section("prompt", "mask", "conversation"), Section("messages", "train", "conversation")),
}
HEADER = "{{ '<|im_start|>' + m.role + '\n' }}"
END = "{{ '<|im_end|>\n' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML = "{% for m in messages %}" + HEADER + "{{ m.content }}" + END + PROMPT
CALL = [{"function": {"name": "f", "arguments": {}}}]


def trained(
    template: str,
    messages: list[dict[str, Any]],
    action: str = "$role",
    controls: tuple[str, ...] = CONTROLS,
    tokens: dict[str, str] = TOKENS,
) -> Any:
    """The trained runs of text, or the reason of the reject; the same by every path."""
    row = {"prompt": messages[:1], "messages": messages[1:]} if action == "prompt" else {"messages": messages}
    found = {path: trained_by(path, template, row, action, controls, tokens) for path in PATHS}
    assert all(each == found["jinja"] for each in found.values()), found
    return found["jinja"]


def trained_by(
    path: str, template: str, row: Any, action: str, controls: tuple[str, ...], tokens: dict[str, str]
) -> Any:
    chat = ChatTemplate(template, tokens, plans=path != "jinja")
    voice = Voice(chat, controls, tokens["bos_token"], tokens["eos_token"])
    wanted = Wanted("chats", "messages") if path == "columns" else None
    output = Output("sequence", "ids", SECTIONS[action], "loss_mask")
    last = None
    for _ in range(1 if path == "jinja" else 3):
        rendered = apply_template(records([row] * 8, wanted), (output,), voice)
        batch = build_mask(tokenize(rendered, POINTS, None), RoleMask({"assistant": "train"}))
        if not len(batch):
            last = batch.ledger.outcomes[batch.ledger.status[0] - 1][1]
            continue
        pairs = zip(batch["sequence"].to_lists()[-1], batch["loss_mask"].to_lists()[-1], strict=True)
        groups = itertools.groupby(pairs, key=lambda pair: pair[1])
        last = ["".join(chr(token) for token, _ in run) for marked, run in groups if marked]
    return last
