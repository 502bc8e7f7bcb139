"""Drafts a config for a shape of records, with a reason for each setting."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from beam_prep.chat.environment import asks_for_date
from beam_prep.config import PipelineConfig
from beam_prep.reading.adapters import ROLES, has_functions
from beam_prep.reading.prompts import begins
from beam_prep.shards.report import near_name
from beam_prep.starter.shapes import Found, Record, Shape, prompt_of_pairs
from beam_prep.tokens.tokenizer import Tokenizer

PLAIN_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- message.role + ':\\n' + message.content -}}"
    "{%- if message.role == 'assistant' -%}{{- eos_token -}}{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'assistant:\\n' -}}{%- endif -%}"
)
"""A chat template for tokenizers without one: roles as words, and the EOS token after each answer."""


_SAID = 4  # most other shapes that are mentioned


@dataclass(slots=True)
class Draft:
    """A config that is being written.

    Attributes:
        config: the config as JSON data.
        why: (place in the config, reason), in order.
        open: questions that the data do not answer, and a person must decide.
    """

    config: dict[str, Any]
    why: list[tuple[str, str]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def set(self, part: str, name: str, value: Any, why: str) -> None:
        """Sets a field of `input`, `preprocessing` or `output`, with its reason."""
        self.config.setdefault(part, {})[name] = value
        self.because(f"{part}.{name}", why)

    def because(self, place: str, why: str) -> None:
        """Notes the reason for a place of the config."""
        self.why.append((place, why))


def draft(found: Found, tokenizer: Tokenizer | None) -> Draft:
    """The config for the shape that was found, without `max_seq_len`."""
    made = Draft({"input": {}})
    shape = found.shape
    _DRAFTS[shape.kind](made, shape, found.records, tokenizer)
    for other, count in list(found.others.items())[:_SAID]:
        made.open.append(
            f"{count:,} of {found.looked_at:,} records have another shape: {other}. This config does "
            "not read them: give them a config and a run of their own"
        )
    read = PipelineConfig.model_validate(made.config).field_use.read
    for other, count in list(found.besides.items())[:_SAID]:
        if not set(other.fields) <= {*shape.fields, *read}:
            made.open.append(
                f"{count:,} records have {other}, too. That is not read. If it is what you want to train "
                "on, name its fields in the sections"
            )
    return made


def _messages(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    _chat(made, shape.fields[0], _roles(records, shape.fields[0], "role"), tokenizer)
    _tools(made, records)


def _chat(made: Draft, name: str, roles: Mapping[str, int], tokenizer: Tokenizer | None) -> None:
    """Sets up a conversation in a field; `roles`: role -> messages."""
    made.config["input"]["sections"] = [{"field": name, "action": "$role", "template": "conversation"}]
    made.because(
        "input.sections",
        f"the chat template renders the conversation in {name!r} as one text, as a chat "
        "model sees it; each message is trained or not by its role",
    )
    _mask(made, roles)
    _template(made, tokenizer)
    _labels(made)


def _mask(made: Draft, roles: Mapping[str, int]) -> None:
    role = "assistant"
    if role not in roles and roles:
        role = next((name for name in roles if near_name(name, ["assistant"]) is not None), "assistant")
        found = ", ".join(map(repr, list(roles)[:8]))
        if role == "assistant":
            made.open.append(f"no message has the role 'assistant'; found: {found}. Say in `mask` which one is trained")
        else:
            made.open.append(
                f"answers have the role {role!r}, not 'assistant': look whether the chat template knows it"
            )
    made.config["mask"] = {role: "train"}
    told = ", ".join(f"{count:,} of {name!r}" for name, count in list(roles.items())[:8])
    made.because("mask", f"answers are trained, all else is read only. Messages found: {told or 'none'}")


def _template(made: Draft, tokenizer: Tokenizer | None) -> None:
    if tokenizer is None:
        made.open.append(
            "no tokenizer was given: whether it has a chat template, and what it writes, was not looked at"
        )
        return
    source, named = tokenizer.chat_template, tokenizer.chat_templates
    if source is None and named:
        name = min(sorted(named), key=lambda each: _FOR_CASES.get(each, 0))
        source = named[name]
        made.set(
            "input", "chat_template", name, "the tokenizer's chat templates have names, and none is the default one"
        )
        made.open.append(
            f"the tokenizer's chat templates are named {', '.join(map(repr, sorted(named)))}: is {name!r} the one that "
            "you want (input.chat_template)?"
        )
    if source is None:
        made.set(
            "input",
            "chat_template",
            PLAIN_TEMPLATE,
            "the tokenizer has no chat template: this one writes each "
            "role as a word, and the EOS token after each answer. If the model was trained on chats, use its own",
        )
        if tokenizer.id_of("eos_token") is None:
            made.open.append("the tokenizer has no EOS token, so nothing ends an answer: name one in it")
    elif asks_for_date(source):
        made.set(
            "input",
            "date",
            date.today().isoformat(),
            "the chat template writes today's date: with a date that "
            "is fixed, the same input gives the same bytes tomorrow",
        )


_FOR_CASES = {"tool_use": 1, "rag": 2}
"""Names of chat templates for special cases. A higher number is less suitable as the default template."""


def _tools(made: Draft, records: Sequence[Record]) -> None:
    tools = sum(bool(record.get("tools") or has_functions(record)) for record in records)
    if tools:
        made.open.append(
            f"{tools:,} records have tools, which are passed to the chat template: `beam-prep audit` "
            "says whether it writes them (configs/tools.jinja does)"
        )


def _labels(made: Draft) -> None:
    made.set(
        "output",
        "columns",
        "labels",
        "input_ids and labels (-100 where nothing is trained), as trainers read "
        "them; not shifted, as models of transformers do that",
    )


def _sharegpt(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    name = shape.fields[0]
    roles = _roles(records, name, "from")
    made.set(
        "input",
        "adapter",
        _sharegpt_adapter(name, roles, made),
        f"items of from and value in {name!r} are read "
        "as messages of role and content; 'human' becomes 'user', 'gpt' becomes 'assistant'",
    )
    _chat(made, "messages", Counter({ROLES.get(role, role): count for role, count in roles.items()}), tokenizer)


def _sharegpt_adapter(name: str, roles: Mapping[str, int], made: Draft) -> Any:
    options: dict[str, Any] = {} if name == "conversations" else {"field": name}
    if unknown := [role for role in roles if role not in ROLES]:
        # An unknown speaker becomes the assistant only if there is none: otherwise a user's text could be trained.
        answered = "assistant" in {ROLES.get(role) for role in roles}
        stranger = "user" if answered else "assistant"
        options["roles"] = {role: near_name(role, ["user", "assistant", "system"]) or stranger for role in unknown}
        made.open.append(
            f"the speakers {', '.join(map(repr, unknown[:8]))} are not among the usual names: look at "
            "input.adapter.roles, which says what they become"
        )
    return {"name": "sharegpt", **options} if options else "sharegpt"


def _roles(records: Sequence[Record], name: str, key: str) -> dict[str, int]:
    """Role -> number of messages, the most frequent first."""
    counts = Counter(
        str(item.get(key)) for record in records for item in record.get(name) or () if isinstance(item, dict)
    )
    return dict(counts.most_common())


def _completion(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    prompt, answer = shape.fields
    made.config["input"]["sections"] = [
        {"field": prompt, "action": "mask", "template": "conversation"},
        {"field": answer, "action": "train", "template": "conversation"},
    ]
    made.because("input.sections", "both are rendered as one conversation; what follows the prompt is trained")
    _template(made, tokenizer)
    _labels(made)


def _pair(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    question, answer = shape.fields
    separated = sum(
        record[answer][:1].isspace() or record[question][-1:].isspace() or begins(record[answer], record[question])
        for record in records
    )
    alpaca = shape.fields == ("instruction", "output")
    if not alpaca and separated > len(records) / 2:
        made.config["input"]["sections"] = [
            {"field": question, "action": "mask"},
            {"field": answer, "action": "train"},
        ]
        made.because(
            "input.sections",
            f"{answer!r} is trained, {question!r} is read only; the texts hold the "
            "space between them already, so they are used as they are",
        )
        made.set("preprocessing", "encode", "joint", "both are joined, then encoded, as a model sees them")
        _eos(made, tokenizer)
        _labels(made)
        return
    # The chat template writes the text between them: a separator of ours would be a format that no model knows.
    options = {} if alpaca else {"instruction": question, "output": answer}
    if not alpaca and "input" in shape.fields:
        options["input"] = "instruction"
    adapter = {"name": "alpaca", **options} if options else "alpaca"
    extra = " (and 'input', where it is filled)" if any(record.get("input") for record in records) and alpaca else ""
    made.set(
        "input",
        "adapter",
        adapter,
        f"nothing separates {question!r}{extra} from {answer!r}, so they are read as "
        "a message of the user and one of the assistant, and the chat template writes what is between",
    )
    _chat(made, "messages", {"user": len(records), "assistant": len(records)}, tokenizer)


def _unpaired(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    answers = _pair if shape.detail == "text" else _completion
    answers(made, Shape("pair", shape.fields[:2]), records, tokenizer)
    del made.config["output"]["columns"]  # the preset sets it
    made.why = [(place, why) for place, why in made.why if place != "output.columns"]
    made.set(
        "output",
        "preset",
        "trl_kto",
        "input_ids and labels, and 'label' beside them: true is a good answer, false a bad one, and the trainer must "
        "tell them apart (KTO: docs/training.md). To train the good answers alone, take out the others",
    )


def _eos(made: Draft, tokenizer: Tokenizer | None) -> None:
    if tokenizer is not None and tokenizer.id_of("eos_token") is None:
        made.open.append(
            "the tokenizer has no EOS token, so nothing ends a text: name one in it, and set "
            'preprocessing.eos to "if_missing"'
        )
        return
    if tokenizer is not None:
        ids = tokenizer.encode(["a"], add_special_tokens=True).flat
        if len(ids) and ids[-1] == tokenizer.id_of("eos_token"):
            return  # the tokenizer adds EOS itself
    made.set(
        "preprocessing", "eos", "if_missing", "the EOS token after each text, so that a model learns where to stop"
    )


def _text(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    made.config["input"]["sections"] = [{"field": shape.fields[0], "action": "train"}]
    made.because("input.sections", "plain text: every token is trained")
    made.set("preprocessing", "truncation_mode", "chunk", "longer texts become several rows, so that nothing is lost")
    _eos(made, tokenizer)
    sizes = sorted(len(record[shape.fields[0]]) for record in records)
    fewest = 1 if sizes and sizes[len(sizes) // 20] < 50 else 50
    made.set(
        "preprocessing",
        "min_chars",
        fewest,
        "shorter texts are left out"
        + ("; here many are short" if fewest == 1 else ": there is little to learn from them"),
    )


def _preference(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    found = prompt_of_pairs(records)
    name, kind = found or ("prompt", "")
    more = [each for each in ("system", "history") if any(record.get(each) for record in records)]
    if name == "instruction" and any(record.get("input") for record in records):
        more.insert(0, "input")
    separated = [
        all(side[:1].isspace() or record[name][-1:].isspace() or begins(side, record[name]) for side in _sides(record))
        for record in records
        if shape.detail == "text" and isinstance(record.get(name), str)
    ]
    texts = shape.detail == "text" and (found is None or (not more and sum(separated) > len(records) / 2))
    if kind == "text" and not texts and (shape.detail == "text" or (more and shape.detail == "messages")):
        options = {} if name == "instruction" else {"instruction": name}
        if name == "input":
            options["input"] = "instruction"
        made.set(
            "input",
            "adapter",
            {"name": "alpaca", "to": "preference", **options},
            f"{', '.join(map(repr, [*more, name]))}: texts, which become the messages of the prompt; the chat template "
            "writes what is between them and the sides",
        )
        name, kind = "prompt", "messages"
    elif "sharegpt" in (shape.detail, kind):
        others = name not in ("prompt", "conversations") and kind == "sharegpt"
        adapter = {"name": "sharegpt", "field": name} if others else "sharegpt"
        made.set("input", "adapter", adapter, "items of from and value are read as messages of role and content")
        name = "messages" if kind == "sharegpt" and name != "prompt" else name
    template = {} if texts else {"template": "conversation"}
    made.config["input"]["sources"] = {
        side: {
            "sections": [
                {"field": name, "action": "mask", **template},
                {"field": side, "action": "train", **template},
            ]
        }
        for side in ("chosen", "rejected")
    }
    made.because(
        "input.sources",
        "a sequence for each side; what follows the prompt is trained, also where a side begins with the prompt",
    )
    if found is None or (kind == "text" and not texts):
        made.set(
            "input",
            "implicit_prompt",
            True,
            "what both sides begin with is the prompt, as in TRL: the records have no prompt of the same kind",
        )
    if texts:
        made.set("preprocessing", "encode", "joint", "prompt and side are joined, then encoded")
        _eos(made, tokenizer)
    else:
        _template(made, tokenizer)


def _sides(record: Record) -> Iterator[str]:
    return (record[side] for side in ("chosen", "rejected"))


def _sampled(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    prompt, responses = shape.fields
    template = {} if shape.detail == "text" else {"template": True}
    sources: dict[str, Any] = {
        "prompts": {"sections": [{"field": prompt, "action": "mask", **template}]},
        "responses": {
            "sections": [{"field": responses, "action": "train"}],
            "list_field": True,
            "mask_key": "masks",
        },
    }
    rewards = next((name for name in ("rewards", "scores", "reward") if _numbers(records, name)), None)
    if rewards is not None:
        sources["rewards"] = {"sections": [{"field": rewards, "action": "value"}]}
    else:
        made.open.append("no field holds a list of numbers for the responses: rewards are not written")
    made.config["input"]["sources"] = sources
    made.because(
        "input.sources",
        "the prompt, the responses (a list, each encoded alone) and their rewards, each a column of its own",
    )
    made.open.append(
        "responses are encoded as they are, without an EOS token: if they were sampled to their end, put "
        "the token's text at the end of each"
    )
    if shape.detail == "sharegpt":
        made.set("input", "adapter", "sharegpt", "the prompt holds items of from and value")
    if shape.detail != "text":
        _template(made, tokenizer)


def _numbers(records: Sequence[Record], name: str) -> bool:
    lists = [record.get(name) for record in records]
    return bool(lists) and all(
        isinstance(values, list) and all(type(value) in (int, float, bool) for value in values) for values in lists
    )


def _rollouts(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    everywhere = {name for name in records[0] if all(name in record for record in records)}
    options: dict[str, Any] = {"prompt_ids": "prompt_ids"}
    if shape.kind == "prompts":
        options["response_ids"] = None
        texts = [name for name in ("answer", "ground_truth", "verifier", "solution") if name in everywhere]
        if texts := [name for name in texts if isinstance(records[0][name], str)]:
            options["texts"] = {name: name for name in texts}
    else:
        options["response_ids"] = "response_ids"
        named = ("loss_mask", "logprobs", "rewards", "policy_version")
        options |= {name: name for name in named if name in everywhere}
        if shape.detail != "grouped":
            options["grouped"] = False
    made.set("input", "rollouts", options, "ids that were sampled are not encoded again (docs/rollouts.md)")
    made.set("preprocessing", "truncation_mode", "drop", "a rollout that is cut is no longer what was sampled")


def _tokenized(made: Draft, shape: Shape, records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    made.set("input", "adapter", "tokenized", "the records hold ids already; labels or a mask beside them are kept")
    _labels(made)
    made.open.append("the ids must be those of the tokenizer that you give to the run")


_DRAFTS = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "completion": _completion,
    "pair": _pair,
    "text": _text,
    "preference": _preference,
    "unpaired": _unpaired,
    "sampled": _sampled,
    "rollouts": _rollouts,
    "prompts": _rollouts,
    "tokenized": _tokenized,
}

_FOLDERS = ("domain", "lang", "language", "source", "subset", "category")


def folders(records: Sequence[Record]) -> Iterator[str]:
    """Remarks on fields that could be the domain of a record."""
    for name in _FOLDERS:
        values = {record.get(name) for record in records if isinstance(record.get(name), str)}
        if 2 <= len(values) <= 20:
            told = ", ".join(sorted(map(str, values))[:4])
            yield f'"output": {{"domain_key": {json.dumps(name)}}} would give each {name} a folder ({told} ...)'
