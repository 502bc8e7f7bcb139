"""`beam-prep init FILES`: writes a config that fits the records, the reasons for it, and what to type next."""

import itertools
import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from beam_prep.audit import Audit, as_lines
from beam_prep.audit.of_tokens import adds_eos, enough
from beam_prep.chat.environment import asks_for_date
from beam_prep.config import PipelineConfig
from beam_prep.config.strict import meanings, plain
from beam_prep.data.block import AnyPath, InputFile, Reject
from beam_prep.errors import InputError, OutputError
from beam_prep.hints import VISIBLE
from beam_prep.reading.adapters import CALLS, ROLES, message_list
from beam_prep.reading.not_text import fields_of_files
from beam_prep.reading.prompts import begins
from beam_prep.reading.records import describe
from beam_prep.reading.verdicts import verdicts
from beam_prep.sample import Drawn, Sample, draw, today
from beam_prep.shards.report import near_name
from beam_prep.storage.files import list_inputs, write_file
from beam_prep.storage.inputs import advice_on
from beam_prep.storage.shipped import load_tokenizer
from beam_prep.tokens.tokenizer import Tokenizer

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of records. All records that fit one config have equal shapes.

    Attributes:
        kind: one of `_KINDS`: the shapes in docs/which_config.md.
        fields: the fields of the shape, in the order of its kind.
        detail: the kind of values in the fields, "text", "messages" or "sharegpt"; "grouped" for rollouts with lists of
            responses.
    """

    kind: str
    fields: tuple[str, ...]
    detail: str = ""

    def __str__(self) -> str:
        return _KINDS[self.kind][1].format(" and ".join(map(repr, self.fields)))


_PAIRS = (
    ("instruction", "output"), ("prompt", "completion"), ("prompt", "response"), ("instruction", "response"),
    ("question", "solution"), ("problem", "solution"), ("question", "generated_solution"),
    ("problem", "generated_solution"), ("question", "answer"), ("query", "response"), ("question", "response"),
    ("prompt", "answer"), ("query", "answer"), ("query", "answers"),
    ("input", "output"), ("source", "target"), ("inputs", "targets"), ("input", "target"), ("user", "assistant"),
    ("human", "assistant"), ("context", "response"), ("src", "tgt"),
)  # fmt: skip
"""(question, answer), more specific names first, in lower case."""

_PROMPTS = ("prompt", "question", "instruction", "query", "problem", "input", "inputs")
_TEXTS = ("text", "content", "body", "document", "article", "code", "raw_content")
_RESULTS = ("summary", "highlights", "abstract", "tldr", "docstring")
"""Names of texts that are made of another text."""
_CHATS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns")
_ANSWERS = ("completion", "response", "output", "answer")
"""Names of answers beside messages that end with a question."""
_SIDES = ("chosen", "rejected", "prompt", "completion", "preferred_output", "non_preferred_output")
_TURNS = (*ROLES, "prompter")  # of records that are one message each
_RESPONSES = ("responses", "completions", "samples", "generations")
_SAMPLED = {
    "response_ids": ("response_ids", "completion_ids", "output_ids"),
    "loss_mask": ("loss_mask", "completion_mask", "response_mask"),
    "logprobs": ("logprobs", "completion_logprobs", "rollout_log_probs"),
    "rewards": ("rewards", "reward"),
    "policy_version": ("policy_version",),
}
"""Column of a rollout -> its names in records: ours, and those of trainers (docs/rollouts.md)."""
_LONG_TEXT = 100  # a field with an unknown name may be the text if it has so many characters


def shapes_of(record: Record) -> Iterator[Shape]:
    """The shapes that fit a record, the most specific first.

    >>> [str(shape) for shape in shapes_of({"prompt": "1 + 1 =", "completion": " 2", "text": "1 + 1 = 2"})]
    ["a question and its answer in 'prompt' and 'completion', texts", "texts in 'text'"]
    """
    if _is_list_of(int, record.get("prompt_ids")):
        responses = next((name for name in _SAMPLED["response_ids"] if isinstance(record.get(name), list)), None)
        if responses is not None:
            grouped = any(isinstance(each, list) for each in record[responses])
            yield Shape("rollouts", ("prompt_ids", responses), "grouped" if grouped else "")
        else:
            yield Shape("prompts", ("prompt_ids",))
    if _is_list_of(int, record.get("input_ids")):
        yield Shape("tokenized", ("input_ids",))
    kinds = {_kind_of_side(record.get(name)) for name in ("chosen", "rejected")}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        yield Shape("preference", ("chosen", "rejected"), kind)
    kinds = {_kind(record.get(name)) for name in ("prompt", "completion")}
    if type(record.get("label")) is bool and kinds in ({"text"}, {"messages"}):
        yield Shape("unpaired", ("prompt", "completion", "label"), str(*kinds))
    # With a verdict for each, they are the steps of one response (TRL).
    for name in _RESPONSES if not _is_list_of(bool, record.get("labels")) else ():
        if _is_list_of(str, record.get(name)) and (kind := _kind(record.get("prompt"))) is not None:
            yield Shape("sampled", ("prompt", name), kind)
    for prompt, answer in (*_PAIRS, *itertools.product(_CHATS, _ANSWERS)):
        kinds = {_kind(record.get(prompt)), _kind_of_side(record.get(answer))}
        if "messages" in kinds and kinds <= {"messages", "text"} and (prompt not in _CHATS or _asks(record[prompt])):
            yield Shape("completion", (prompt, answer))
    names = [*_CHATS, *(name for name in record if name not in (*_CHATS, *_SIDES, "conversation_a", "conversation_b"))]
    for wanted in ("messages", "sharegpt"):
        for name in names:
            if _kind(record.get(name)) == wanted:
                yield Shape("messages" if wanted == "messages" else "sharegpt", (name,))
    texts = {name.lower(): name for name, value in record.items() if isinstance(value, str)}
    if pair := next((pair for pair in _PAIRS if texts.keys() >= {*pair}), None):
        yield Shape("pair", tuple(texts[name] for name in pair))
    yield from (Shape("text", (texts[name],)) for name in _TEXTS if name in texts and record.get("role") not in _TURNS)


def _guesses(record: Record) -> Iterator[Shape]:
    """The shape of a record without a known shape: its only long text, under any name."""
    long = _long_texts(record)
    if len(long) == 1 and record.get("role") not in _TURNS:
        yield Shape("text", (long[0],))


def _long_texts(record: Record) -> list[str]:
    texts = ((name, value) for name, value in record.items() if name not in ("tools", "functions"))
    return [name for name, value in texts if isinstance(value, str) and len(value) >= _LONG_TEXT]


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is kind for each in value)


def _kind(value: Any) -> str | None:
    """The kind of a field's value: `text`, `messages`, `sharegpt`, or None."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return None
    if all(isinstance(item.get("role"), str) for item in value):
        return "messages" if any("content" in item for item in value) else None  # Gemini has `parts`
    return "sharegpt" if all(isinstance(item.get("from"), str) for item in value) else None


def _asks(messages: Any) -> bool:
    """True for messages that end with a question."""
    return isinstance(messages, list) and ROLES.get(messages[-1].get("role")) == "user"


def _kind_of_side(value: Any) -> str | None:
    """The kind of an answer, which may also be a single message."""
    return _kind([value] if isinstance(value, dict) else value)


def prompt_of_pairs(records: Sequence[Record]) -> tuple[str, str] | None:
    """(field of the prompt of preference pairs, kind of its value); None if most records have no such field."""
    for name in (*_PROMPTS, *_CHATS):
        kinds = Counter(_kind(value) for record in records if (value := record.get(name)))
        if kinds and (most := kinds.most_common(1)[0])[0] is not None and most[1] > len(records) / 2:
            return name, str(most[0])
    return None


@dataclass(frozen=True, slots=True)
class Found:
    """The shape of records.

    Attributes:
        shape: the chosen shape.
        records: the records that have it.
        looked_at: the number of records that were read.
        others: other shape -> number of records that have it and not the chosen shape.
        besides: other shape -> number of records that have it and the chosen shape.
    """

    shape: Shape
    records: Sequence[Record]
    looked_at: int
    others: Mapping[Shape, int]
    besides: Mapping[Shape, int]


def _with_lists(record: Record) -> Record:
    """The record with messages as lists, also if they are JSON in a text or an object of lists. A run reads them so."""
    lists = {}
    for name, value in record.items():
        try:
            found = message_list(value, name)
        except Reject:
            continue
        if _kind(found) is not None:
            lists[name] = found
    return {**record, **lists}


def find_shape(records: Sequence[Record]) -> Found | None:
    """The shape that is the most specific one of most records; None if no known shape fits any record.

    A guess is none if as many records have several long texts: Glaive's `chat` is the only one beside a short `system`.
    """
    known = [(record, list(shapes_of(record)) or list(_guesses(record))) for record in map(_with_lists, records)]
    first = Counter(shapes[0] for _, shapes in known if shapes)
    if not first:
        return None
    chosen = first.most_common(1)[0][0]
    fitting = [(record, shapes) for record, shapes in known if chosen in shapes]
    is_guess = chosen.kind == "text" and chosen.fields[0].lower() not in _TEXTS
    several = sum(not shapes and len(_long_texts(record)) > 1 for record, shapes in known)
    if is_guess and several >= len(fitting):
        return None
    others = Counter(shapes[0] for _, shapes in known if shapes and chosen not in shapes)
    besides = Counter(shape for _, shapes in fitting for shape in shapes if shape != chosen)
    return Found(chosen, [record for record, _ in fitting], len(records), others, besides)


# The config for a shape.

RECORDS = 500
"""How many records are read: a few hundred show shapes and lengths, though not rare faults."""
_SAID = 4  # most other shapes that are mentioned
_SHORTEST, _LONGEST, _CHUNK = 512, 32_768, 2_048
"""The least and the most that is proposed as `max_seq_len`, and the length of a chunk."""
_CHARACTERS = 3
"""Characters a token, if no tokenizer is given. Less than usual in English, so rows are rather too long."""

_PROMPTS_ALONE = "prompts without answers, for reinforcement learning, are given as ids (docs/rollouts.md)"

PLAIN_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- message.role + ':\\n' + message.content -}}"
    "{%- if message.role == 'assistant' -%}{{- eos_token -}}{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'assistant:\\n' -}}{%- endif -%}"
)
"""A chat template for tokenizers without one: roles as words, and the EOS token after each answer."""


@dataclass(slots=True)
class Draft:
    """A config that is being written.

    Attributes:
        input, preprocessing, output, mask: the parts of the config, as JSON data.
        why: place in the config -> the reason that the data give.
        open: questions that the data do not answer, and a person must decide.
    """

    input: dict[str, Any] = field(default_factory=dict)
    mask: dict[str, str] = field(default_factory=dict)
    preprocessing: dict[str, Any] = field(default_factory=dict)
    output: dict[str, Any] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)

    @property
    def config(self) -> dict[str, Any]:
        """The config as JSON data."""
        parts = {name: getattr(self, name) for name in ("input", "mask", "preprocessing", "output")}
        return {name: part for name, part in parts.items() if part}

    def reasons(self) -> Iterator[tuple[str, str]]:
        """(place in the config, the reason that the data give; else what the setting does), in order."""
        for name, part in self.config.items():
            part_of: Any = PipelineConfig.model_fields[name].annotation
            does = {} if name == "mask" else meanings(part_of)
            for place in [name] if name == "mask" else [f"{name}.{each}" for each in part]:
                yield place, self.why.get(place) or plain(does[place.removeprefix(f"{name}.")])


def draft(found: Found, tokenizer: Tokenizer | None) -> Draft:
    """The config for the shape that was found, without `max_seq_len`."""
    made, shape = Draft(), found.shape
    _KINDS[shape.kind][0](made, shape, found.records, tokenizer)
    if tokenizer is None:
        made.open.append("no tokenizer was given: whether it has a chat template, and what it writes, is not known")
    elif tokenizer.id_of("eos_token") is None:
        made.open.append("the tokenizer has no EOS token, so nothing ends a text or an answer: name one in it")
    read = PipelineConfig.model_validate(made.config).field_use.read
    # Adapters leave messages as they are, and one of two sides of messages may be a text.
    alike = "messages" if "adapter" in made.input else "preference" if shape.detail == "messages" else None
    others = {each: count for each, count in found.others.items() if each.kind != alike or not read >= {*each.fields}}
    for other, count in list(others.items())[:_SAID]:
        said = f"{count:,} of {found.looked_at:,} records have another shape: {other}"
        made.open.append(f"{said}. This config does not read them: give them a config and a run of their own")
    for other, count in list(found.besides.items())[:_SAID]:
        if not set(other.fields) <= {*shape.fields, *read}:
            said = f"{count:,} records have {other}, too. That is not read"
            made.open.append(f"{said}. If it is what you want to train on, name its fields in the sections")
    return made


def _section(name: str, action: str, template: str | bool = "conversation") -> dict[str, Any]:
    return {"field": name, "action": action, **({"template": template} if template else {})}


def _messages(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    name, key = shape.fields[0], "from" if shape.kind == "sharegpt" else "role"
    items = (item for record in records for item in record.get(name) or () if isinstance(item, dict))
    roles = dict(Counter(str(item.get(key)) for item in items).most_common())
    renamed = any(near_name(role, dict.fromkeys(ROLES.values())) not in (None, role) for role in roles)
    # Anthropic's may be a list of parts.
    beside = _has_texts(records, "system", str | list) and roles.keys() <= ROLES.keys()
    calls = not roles.keys().isdisjoint(CALLS)  # which the assistant writes
    if shape.kind == "sharegpt" or beside or calls or (renamed and "assistant" not in roles):
        roles = _sharegpt(name, roles, made)  # which puts `system` among the messages, too
        name = "messages"
    _chat(made, name, roles, tokenizer)


def _sharegpt(name: str, roles: Mapping[str, int], made: Draft) -> dict[str, int]:
    """Sets up the adapter for `roles` (name -> messages); gives the roles that it makes."""
    options: dict[str, Any] = {} if name == "conversations" else {"field": name}
    if unknown := [role for role in roles if role not in ROLES]:
        near = {role: near_name(role, dict.fromkeys(ROLES.values())) for role in unknown}
        # A stranger becomes the assistant only if nobody else can be: otherwise a user's text could be trained.
        answered = "assistant" in {*map(ROLES.get, roles), *near.values()}
        stranger = "user" if answered or list(near.values()).count(None) > 1 else "assistant"
        options["roles"] = {role: near[role] or stranger for role in unknown}
        made.open.append(
            f"the speakers {', '.join(map(repr, unknown[:8]))} are not among the usual names: look at "
            "input.adapter.roles, which says what they become"
        )
    made.input["adapter"] = {"name": "sharegpt", **options} if options else "sharegpt"
    found = Counter[str]()
    for role, count in roles.items():
        found[{**ROLES, **options.get("roles", {})}[role]] += count
    return found


def _chat(made: Draft, name: str, roles: Mapping[str, int], tokenizer: Tokenizer | None) -> None:
    """Sets up a conversation in a field; `roles`: role -> messages."""
    made.input["sections"] = [_section(name, "$role")]
    trained = "assistant"
    told = ", ".join(f"{count:,} of {role!r}" for role, count in list(roles.items())[:8]) or "none"
    if roles and trained not in roles:
        trained = next((role for role in roles if near_name(role, [trained]) is not None), trained)
        advice = (
            f"`mask` trains {trained!r}: say there whose messages are answers, and look whether the chat template "
            "knows this role"
        )
        if all(ROLES.get(role, "assistant") != "assistant" for role in roles):
            advice = f"Put answers in other fields behind them (docs/which_config.md); {_PROMPTS_ALONE}"
        made.open.append(f"no message has the role 'assistant'; found: {told}. {advice}")
    made.mask[trained] = "train"
    made.why["mask"] = f"answers are trained, all else is read only. Messages found: {told}"
    _template(made, tokenizer)
    made.output["columns"] = "labels"


def _template(made: Draft, tokenizer: Tokenizer | None) -> None:
    if tokenizer is None:
        return
    source, named = tokenizer.chat_template, tokenizer.chat_templates
    if source is None and named:
        name = min(sorted(named), key=lambda each: each in ("tool_use", "rag"))  # these are for special cases
        source = named[name]
        made.input["chat_template"] = name
        made.open.append(
            f"the tokenizer's chat templates are named {', '.join(map(repr, sorted(named)))}: is {name!r} the one that "
            "you want (input.chat_template)?"
        )
    if source is None:
        made.input["chat_template"] = PLAIN_TEMPLATE
        made.why["input.chat_template"] = "the tokenizer has no chat template. If the model has one, use it"
    elif asks_for_date(source):
        made.input["date"] = today()


def _completion(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    prompt, answer = shape.fields
    roles = Counter(each["role"] for record in records if type(record.get(answer)) is list for each in record[answer])
    # The action `train` would train the results of tools among them.
    _chat(made, answer, roles, tokenizer)
    if roles.keys() <= {"assistant"}:
        made.input["sections"], made.mask = [_section(answer, "train")], {}
    made.input["sections"].insert(0, _section(prompt, "mask"))


def _pair(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    question, answer = shape.fields
    alpaca = tuple(map(str.lower, shape.fields)) == ("instruction", "output")
    if not alpaca and _are_separated(records, question, answer):
        made.input["sections"] = [_section(question, "mask", False), _section(answer, "train", False)]
        made.preprocessing["encode"] = "joint"
        _eos(made, tokenizer)
        made.output["columns"] = "labels"
        return
    # The chat template writes the text between them: a separator of ours would be a format that no model knows.
    options = {} if shape.fields == ("instruction", "output") else {"instruction": question, "output": answer}
    beside = (name for name in ("input", "Input", "context", "Context") if _has_texts(records, name))
    if (name := next((name for name in beside if name not in shape.fields), "input")) != "input":
        options["input"] = name
    elif "input" in shape.fields:
        options["input"] = "instruction"
    if system := next((name for name in ("system_prompt", "system_message") if _has_texts(records, name)), None):
        options["system"] = system
    made.input["adapter"] = {"name": "alpaca", **options} if options else "alpaca"
    _chat(made, "messages", {"user": len(records), "assistant": len(records)}, tokenizer)


def _has_texts(records: Sequence[Record], name: str, kinds: Any = str) -> bool:
    values = [record.get(name) for record in records]
    return any(values) and all(value is None or isinstance(value, kinds) for value in values)


def _are_separated(records: Sequence[Record], prompt: str, *answers: str) -> bool:
    """True if the texts of most records hold the space between prompt and answers."""

    def separated(record: Record) -> bool:
        asked, said = record.get(prompt), [record[name] for name in answers]
        if not isinstance(asked, str):
            return False
        return all(each[:1].isspace() or asked[-1:].isspace() or begins(each, asked) for each in said)

    return sum(map(separated, records)) > len(records) / 2


def _unpaired(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    answers = _pair if shape.detail == "text" else _completion
    answers(made, Shape("pair", shape.fields[:2]), records, tokenizer)
    made.output = {"preset": "trl_kto"}


def _eos(made: Draft, tokenizer: Tokenizer | None) -> None:
    if tokenizer is None or (tokenizer.id_of("eos_token") is not None and not adds_eos(tokenizer)):
        made.preprocessing["eos"] = "if_missing"


def _text(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    name, fields = shape.fields[0], [each for record in records for each in record.items()]
    texts = {each for each, text in fields if isinstance(text, str) and text.count(" ") > 1 and each != name}
    others = sorted(texts, key=lambda each: (each.lower() not in _PROMPTS, each))
    results = [each for each in others if each.lower() in _RESULTS]
    asks, is_known = name.lower() in _PROMPTS, name.lower() in _TEXTS
    if asks or results or (others and not is_known):
        if asks or results:
            question, answer = name, (results or others or ["..."])[0]
            but = "though its name is a question's" if asks else f"without {answer!r}"
            but += ". If another field answers it"
        else:
            question, answer = others[0], name
            but = f"without {', '.join(map(repr, others[:_SAID]))}. If it answers one of them"
        made.open.append(
            f"{name!r}{'' if is_known else ', the only long text,'} is trained as a document, {but}, set "
            f'"adapter": {{"name": "alpaca", "instruction": {json.dumps(question)}, "output": {json.dumps(answer)}}}, '
            f'the section {json.dumps(_section("messages", "$role"))} and "mask": {{"assistant": "train"}}'
        )
    made.input["sections"] = [_section(name, "train", False)]
    made.preprocessing["truncation_mode"] = "chunk"
    _eos(made, tokenizer)
    sizes = sorted(len(record[name]) for record in records)
    made.preprocessing["min_chars"] = 1 if sizes and sizes[len(sizes) // 20] < 50 else 50  # 1: here many are short


def _preference(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    found = prompt_of_pairs(records)
    name, kind = found or ("prompt", "")
    more = [each for each in ("system", "history") if any(record.get(each) for record in records)]
    if name == "instruction" and any(record.get("input") for record in records):
        more.append("input")
    texts = shape.detail == "text"
    if found is not None and texts:
        texts = not more and _are_separated(records, name, "chosen", "rejected")
    if kind == "text" and not texts and (shape.detail == "text" or (more and shape.detail == "messages")):
        options = {} if name == "instruction" else {"instruction": name}
        if name == "input":
            options["input"] = "instruction"
        made.input["adapter"] = {"name": "alpaca", "to": "preference", **options}
        name, kind = "prompt", "messages"
    elif "sharegpt" in (shape.detail, kind):
        others = name not in ("prompt", "conversations") and kind == "sharegpt"
        made.input["adapter"] = {"name": "sharegpt", "field": name} if others else "sharegpt"
        name = "messages" if kind == "sharegpt" and name != "prompt" else name
    if found is None or (kind == "text" and not texts):
        made.input["implicit_prompt"] = True
    template = False if texts else "conversation"
    made.input["sources"] = {
        side: {"sections": [_section(name, "mask", template), _section(side, "train", template)]}
        for side in ("chosen", "rejected")
    }
    if texts:
        made.preprocessing["encode"] = "joint"
        _eos(made, tokenizer)
    else:
        _template(made, tokenizer)


def _sampled(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    prompt, responses = shape.fields
    answers = {"sections": [_section(responses, "train", False)], "list_field": True, "mask_key": "masks"}
    made.input["sources"] = {
        "prompts": {"sections": [_section(prompt, "mask", shape.detail != "text")]},
        "responses": answers,
    }
    rewards = next((name for name in ("rewards", "scores", "reward") if _numbers(records, name)), None)
    if rewards is not None:
        made.input["sources"]["rewards"] = {"sections": [_section(rewards, "value", False)]}
    else:
        made.open.append("no field holds a list of numbers for the responses: rewards are not written")
    made.open.append(
        "responses are encoded as they are, without an EOS token: if they were sampled to their end, put "
        "the token's text at the end of each"
    )
    if shape.detail == "sharegpt":
        made.input["adapter"] = "sharegpt"
    if shape.detail != "text":
        made.open.append(
            "prompts end with their last message, without the generation prompt behind which responses are sampled: "
            "give ids (docs/rollouts.md), or each prompt as the text that the policy read"
        )
        _template(made, tokenizer)


def _numbers(records: Sequence[Record], name: str) -> bool:
    lists = [record.get(name) for record in records]
    return all(isinstance(each, list) and all(type(value) in (int, float) for value in each) for each in lists)


def _rollouts(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    everywhere = {name for name in records[0] if all(name in record for record in records)}
    options: dict[str, Any] = {"prompt_ids": "prompt_ids"}
    if shape.kind == "prompts":
        options["response_ids"] = None
        texts = [name for name in ("answer", "ground_truth", "verifier", "solution") if name in everywhere]
        if texts := [name for name in texts if isinstance(records[0][name], str)]:
            options["texts"] = {name: name for name in texts}
    else:
        found = {column: [name for name in names if name in everywhere] for column, names in _SAMPLED.items()}
        options |= {column: names[0] for column, names in found.items() if names}
        if shape.detail != "grouped":
            options["grouped"] = False
    made.input["rollouts"] = options
    made.preprocessing["truncation_mode"] = "drop"


def _tokenized(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    made.input["adapter"] = "tokenized"
    made.output["columns"] = "labels"
    made.open.append("the ids must be those of the tokenizer that you give to the run")


_KINDS: Mapping[str, tuple[Callable[..., None], str]] = {
    "rollouts": (_rollouts, "ids of prompts and sampled responses in {}"),
    "prompts": (_rollouts, "ids of prompts in {}"),
    "tokenized": (_tokenized, "ids in {}: tokenised already"),
    "preference": (_preference, "preference pairs in {}"),
    "unpaired": (_unpaired, "answers that are good or bad (unpaired preference) in {}"),
    "sampled": (_sampled, "a prompt and sampled responses in {}"),
    "messages": (_messages, "conversations in {}: messages of role and content"),
    "sharegpt": (_messages, "conversations in {}: items of from and value (ShareGPT)"),
    "completion": (_completion, "messages of a prompt and of what follows it in {}"),
    "pair": (_pair, "a question and its answer in {}, texts"),
    "text": (_text, "texts in {}"),
}
"""Kind of shape -> the function that makes its config, and what is said of it."""


def start(
    inputs: Sequence[str], path: AnyPath, tokenizer_path: str | None = None, overwrite: bool = False
) -> list[str]:
    """Writes a config that fits the records, and the reasons for it beside it, with the ending `.md`.

    Args:
        inputs: paths and globs of JSONL files.
        path: the config to write.
        tokenizer_path: a tokenizer's folder, or its name on the Hugging Face Hub. With it, lengths are counted, the
            template is checked, and the config is tried.
        overwrite: replaces existing files.

    Returns:
        lines for the terminal: what was found, what was written, what to type next.

    Raises:
        InputError: there is no record, or no record of a known shape.
        OutputError: a file exists already.
        TokenizerError: there is no such tokenizer.
    """
    target = Path(path)
    if not target.name or target.is_dir() or str(path).endswith("/"):
        raise OutputError(f"-o is {str(path)!r}, wanted a file: give a name that ends in .json")
    reasons = target.with_suffix(".md")
    if target == reasons:
        raise OutputError(f"-o is {target}, and the reasons are written there: give a name that ends in .json")
    for file in (target, reasons):
        if file.exists() and not overwrite:
            raise OutputError(f"{file} is there already: pass --overwrite to replace it, or choose another -o")
    files = list_inputs(list(inputs))
    read = {os.path.realpath(file.path) for file in files}
    if not read.isdisjoint(str(file.resolve()) for file in (target, reasons)):
        raise OutputError(f"-o is {target}, and that is an input: choose another -o")
    drawn = draw(files, RECORDS)
    records = [record for block in drawn.blocks for record in block.rows]
    found = find_shape(records)
    if found is None:
        problem = _unknown(files, drawn, records)
        raise InputError(advice_on(files, problem, ()) or problem)
    tokenizer = None if tokenizer_path is None else load_tokenizer(tokenizer_path)
    made = draft(found, tokenizer)
    _set_length(made, found, drawn, tokenizer, files)
    config = PipelineConfig.from_dict(made.config, str(target))
    tried = None if tokenizer is None else Audit.of(Sample.of(drawn, config, tokenizer, files))
    use = config.field_use
    made.open += [str(each) for each in verdicts(found.records, use)]
    made.open += fields_of_files(found.records, use.known) if use.answers else []
    told = [drawn.looked_at, f"chosen: {found.shape} ({len(found.records):,} records)"]
    told += [f"to decide: {text}" for text in made.open]
    told += [] if tried is None else ["tried on these records:", *itertools.islice(as_lines(tried), 1, None)]
    options = shlex.join(["-c", str(target), "--tokenizer_path", tokenizer_path or "TOKENIZER"])
    given = f"{shlex.join(inputs)} \\\n    {options}"
    commands = [f"beam-prep {name} {given}" for name in ("audit", "inspect", "run -o out")]
    text = json.dumps(made.config, ensure_ascii=False, indent=2)
    write_file(os.path.realpath(target), f"{text}\n".encode())
    cells = [(place, why.replace("|", "\\|")) for place, why in made.reasons()]
    table = ["| field | why |", "|---|---|", *(f"| `{place}` | {why} |" for place, why in cells)]
    page = [f"# Why {target.name} is so", "", *table, "", "```text", *told, "", *commands, "```"]
    write_file(os.path.realpath(reasons), ("\n".join(page).translate(VISIBLE) + "\n").encode())
    told += [f"wrote {target}, and why it is so: {reasons}", "next:", *(f"  {line}" for line in commands)]
    return told


def _set_length(
    made: Draft, found: Found, drawn: Drawn, tokenizer: Tokenizer | None, files: Sequence[InputFile]
) -> None:
    """Sets `max_seq_len` by the lengths of the sample."""
    if made.preprocessing.get("truncation_mode") == "chunk":
        made.preprocessing["max_seq_len"] = _CHUNK
        made.why["preprocessing.max_seq_len"] = "tokens of a row: set it to what your model is trained with"
        return
    if tokenizer is None:
        sizes = np.array([len(json.dumps(record, ensure_ascii=False)) // _CHARACTERS for record in found.records])
        how = "estimated by characters, as no tokenizer was given"
    else:
        sizes = Sample.of(drawn, PipelineConfig.from_dict(made.config), tokenizer, files).lengths
        how = "counted with the tokenizer"
    longest, length = int(sizes.max(initial=0)), min(_LONGEST, enough(sizes, _SHORTEST))
    cut = np.maximum(sizes - length, 0).sum() / max(1, sizes.sum())
    made.preprocessing["max_seq_len"] = length
    made.why["preprocessing.max_seq_len"] = (
        f"the longest row of the sample has {longest:,} tokens ({how}); at {length:,}, {cut:.1%} of all are cut off"
    )


def _unknown(files: Sequence[InputFile], drawn: Drawn, records: Sequence[Any]) -> str:
    if not records:
        outcomes = [reason for block in drawn.blocks for kind, reason in block.ledger.outcomes if kind == "rejected"]
        why = f": its lines are rejected as {outcomes[0]}" if outcomes else ""
        return f"{files[0].path} has no record that can be read{why}; wanted one JSON object on each line"
    names = {name: _described(value) for record in records for name, value in record.items()}
    told = ", ".join(f"{name!r} ({kind})" for name, kind in list(names.items())[:12])
    return (
        f"no known shape fits the records of {files[0].path}; their fields: {told or 'none'}. Convert them to a shape "
        "of docs/which_config.md, for instance 'messages' of 'role' and 'content' (pairs: 'chosen' and 'rejected'): "
        f'the page has a script under "Records of another shape"; {_PROMPTS_ALONE}'
    )


def _described(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        keys = dict.fromkeys(key for item in value[:100] if isinstance(item, dict) for key in item)
        return f"a list of objects with {', '.join(map(repr, list(keys)[:8]))}"
    return describe(value)
