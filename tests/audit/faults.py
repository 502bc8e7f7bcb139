"""Faults to plant: each changes records, or the config, and has the finding that must name it."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Record = dict[str, Any]

TEMPLATE = (
    "{{- bos_token -}}\n"
    "{%- if tools -%}{{- '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' -}}{%- endif -%}\n"
    "{%- for message in messages -%}\n"
    "{{- '<|im_start|>' + message.role + '\\n' -}}\n"
    "{{- message.content or '' -}}\n"
    "{%- for call in message.tool_calls or [] -%}{{- call | tojson -}}{%- endfor -%}\n"
    "{{- '<|im_end|>' -}}\n"
    "{{- '\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n"
)
CONTENT = "{{- message.content or '' -}}\n"
END = "{{- '<|im_end|>' -}}\n{{- '\\n' -}}\n"
TOOLS = [{"type": "function", "function": {"name": "find_train", "parameters": {"type": "object", "properties": {}}}}]


def config(**parts: Any) -> dict[str, Any]:
    """The config of the clean corpus, with other values in some parts; `mask` and `template` replace theirs."""
    made: dict[str, Any] = {
        "input": {
            "sections": [{"field": "messages", "action": "$role", "template": "conversation"}],
            "chat_template": parts.pop("template", TEMPLATE),
        },
        "mask": {"assistant": "train"},
        "preprocessing": {"max_seq_len": 4096},
        "output": {"columns": "labels"},
    }
    for part, values in parts.items():
        made[part] = {**made.get(part, {}), **values} if part not in ("mask", "mask_default") else values
    return made


def templated(old: str, new: str) -> dict[str, Any]:
    """The config of the clean corpus with another part in its template, once."""
    assert old in TEMPLATE
    return config(template=TEMPLATE.replace(old, new, 1))


Plant = Callable[[Record], Record | str]


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: of the case.
        finding: that must be there.
        plant: changes a record; a text becomes the line itself.
        share: of the records that are changed.
        config: of the run.
        says: what the finding's sentence, example or advice must hold.
    """

    name: str
    finding: str
    plant: Plant | None = None
    share: float = 0.03
    config: dict[str, Any] = field(default_factory=config)
    says: str = ""


def _in(role: str, change: Callable[[str], Any]) -> Plant:
    """Changes the first message of a role."""

    def plant(record: Record) -> Record:
        message = next(each for each in record["messages"] if each["role"] == role)
        message["content"] = change(message["content"])
        return record

    return plant


def _gpt(record: Record) -> Record:
    for message in record["messages"]:
        message["role"] = "gpt" if message["role"] == "assistant" else message["role"]
    return record


def _human(record: Record) -> Record:
    for message in record["messages"]:
        message["role"] = "human" if message["role"] == "user" else message["role"]
    return record


def _other_field(record: Record) -> Record:
    record["message"] = record.pop("messages")
    return record


def _repeat(record: Record) -> Record:
    messages = record["messages"]
    last = next(place for place in range(len(messages) - 1, -1, -1) if messages[place]["role"] == "assistant")
    messages.insert(last, dict(messages[last]))
    return record


def _long(record: Record) -> Record:
    words = " ".join(f"stop {number}" for number in range(1500))
    record["messages"][-1]["content"] += f" {words}"
    return record


def _end_with_answer(record: Record) -> Record:
    while record["messages"][-1]["role"] != "assistant":
        record["messages"].pop()
    return _long(record)


def _reasoning(record: Record) -> Record:
    record["messages"][-1]["reasoning_content"] = "They ask for a place, so I look at the map first."
    return record


def _reasoning_of_all(record: Record) -> Record:
    for message in record["messages"]:
        if message["role"] == "assistant":
            message["reasoning_content"] = "They ask for a place, so I look at the map first."
    return record


def _named(record: Record) -> Record:
    record["messages"][-1]["name"] = "Ann"
    return record


def _developer(record: Record) -> Record:
    first = {"role": "developer", "content": "You know all the trains of Belgium."}
    return {**record, "messages": [first, *record["messages"]]}


FIRST = "{%- for message in messages -%}"

FAULTS: Sequence[Fault] = (
    Fault("a role of the mask that is misspelt", "role_not_in_data", config=config(mask={"asistant": "train"})),
    Fault("half of the answers have another role", "role_not_in_mask", _gpt, 0.5, says="'gpt'"),
    Fault("questions have another role", "role_not_in_mask", _human, 0.5, says='"mask": {"human": "mask"}'),
    Fault("users alone are trained", "answers_not_trained", config=config(mask={"user": "train"})),
    Fault("a third has its messages elsewhere", "dropped_empty", _other_field, 0.33, says="did you mean 'message'"),
    Fault("lines that are cut", "rejected_bad_json", lambda record: json.dumps(record)[:-2]),
    Fault(
        "a template that refuses a role",
        "rejected_template_error",
        _developer,
        config=templated(CONTENT, "{%- if message.role == 'developer' -%}{{- raise_exception('who?') -}}{%- endif -%}"),
    ),
    Fault("answers that are marked as bad", "bad_answers", lambda record: {**record, "is_correct": False}),
    Fault(
        "a system prompt in a field of its own",
        "field_not_read",
        lambda record: {**record, "system": "Answer in one sentence, and name the place."},
    ),
    Fault(
        "what was retrieved in a field of its own",
        "field_not_read",
        lambda record: {**record, "documents": [{"title": "Post", "text": "It opened in the spring of 1911."}]},
        says="'documents'",
    ),
    Fault(
        "reasoning in a field of its own",
        "field_not_read",
        lambda record: {**record, "Complex_CoT": "The post office stands at the market, so I name it."},
        says="'Complex_CoT'",
    ),
    Fault("BOS twice", "double_bos", config=config(template="{{- bos_token -}}" + TEMPLATE), says='"bos"'),
    Fault("no BOS", "no_bos", config=templated("{{- bos_token -}}\n", ""), says='"bos": "tokenizer"'),
    Fault("no end token", "no_end", config=templated(END, "{{- '\\n' -}}\n")),
    Fault("answers that bring an end token", "double_end", _in("assistant", lambda text: f"{text}<|im_end|>")),
    Fault("rows that are cut short", "cut_off", config=config(preprocessing={"max_seq_len": 48}), says='"max_seq_len"'),
    Fault(
        "a few answers that are cut",
        "answers_cut",
        _end_with_answer,
        config=config(preprocessing={"max_seq_len": 2048}),
    ),
    Fault(
        "a run that ends at long rows",
        "cut_off",
        _long,
        config=config(preprocessing={"truncation_mode": "error"}),
        says="the run ends",
    ),
    Fault(
        "names in the headers of answers",
        "rejected_turn_begin",
        _named,
        says="before its text stands its name: 'Ann'",
        config=templated("message.role + '", "message.role + (' ' + message.name if message.name else '') + '"),
    ),
    Fault("copies", "duplicates", share=0.06),
    Fault("empty answers", "empty_turns", _in("assistant", lambda text: ""), says="'assistant'"),
    Fault("an answer that is there twice", "repeated_turns", _repeat),
    Fault(
        "answers of which a part is marked",
        "answers_in_part",
        config=templated(
            CONTENT, "{%- generation -%}{{- message.content[:9] -}}{%- endgeneration -%}{{- message.content[9:] -}}\n"
        ),
    ),
    Fault("control tokens in questions", "control_tokens", _in("user", lambda text: text + "<|im_end|>")),
    Fault("the markup of Llama 2", "markup_in_text", _in("user", lambda text: f"[INST] {text} [/INST]")),
    Fault("control characters", "control_characters", _in("user", lambda text: f"\x1b[1m{text}"), says="U+001B"),
    Fault("characters of width zero", "control_characters", _in("user", lambda text: f"\u200b{text}"), says="U+200B"),
    Fault("UTF-8 read as Latin-1", "broken_characters", _in("assistant", lambda text: text + " Itâ€™s late.")),
    Fault("characters that are lost", "broken_characters", _in("user", lambda text: "\ufffd" + text)),
    Fault(
        "a template with a date in it",
        "date_in_template",
        says="26 Jul 2024",
        config=templated(FIRST, "{{- '<|im_start|>system\\nToday Date: 26 Jul 2024<|im_end|>\\n' -}}\n" + FIRST),
    ),
    Fault(
        "a template that asks for the date",
        "date_wanted",
        says='"date"',
        config=templated(FIRST, "{{- strftime_now('%d %b %Y') -}}\n" + FIRST),
    ),
    Fault(
        "a template that ignores tools",
        "tools_not_written",
        lambda record: {**record, "tools": TOOLS},
        config=templated("{%- if tools -%}", "{%- if false -%}"),
        says="writes `tools`",
    ),
    Fault(
        "a template that ignores a role",
        "rejected_not_rendered",
        _developer,
        says="'messages[0]' (developer)",
        config=templated(FIRST, "{%- for message in messages if message.role != 'developer' -%}"),
    ),
    Fault("a template that ignores reasoning", "reasoning_not_written", _reasoning, says="reasoning"),
    Fault(
        "a template that ignores the reasoning of last answers",
        "last_reasoning_not_written",
        _reasoning_of_all,
        config=templated(CONTENT, "{{- message.reasoning_content if not loop.last -}}\n" + CONTENT),
        says="answers that nothing follows",
    ),
)


def planted(fault: Fault, records: Sequence[Record]) -> tuple[list[str], set[int]]:
    """(lines, the numbers of those with the fault) of clean records."""
    chance = np.random.default_rng(1)
    lines, changed = [], set[int]()
    for number, record in enumerate(records):
        made: Record | str = record
        if (fault.plant is not None or fault.finding == "duplicates") and chance.random() < fault.share:
            changed.add(number)
            if fault.finding == "duplicates":
                made = records[int(chance.integers(len(records)))]
            elif fault.plant is not None:
                made = fault.plant(copy.deepcopy(record))
        lines.append(made if isinstance(made, str) else json.dumps(made, ensure_ascii=False))
    return lines, changed
