"""Findings, and checks of records: records that are left out, fields that are not read, problems of texts.

`Finding` is a problem; `Hits` collects the records that have it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from beam_prep.chat.chat_format import guard_of
from beam_prep.chat.messages import has_words
from beam_prep.chat.origins import REASONING_FIELDS
from beam_prep.data.block import ADVICE
from beam_prep.hints import counted
from beam_prep.reading.decontaminate import texts_in
from beam_prep.reading.records import LOST
from beam_prep.reading.verdicts import verdicts
from beam_prep.sample import Conversation, Example, Part, Sample, text_of
from beam_prep.shards.report import lost_causes
from beam_prep.tokens.rows import trained_tokens


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of data, config or template.

    Attributes:
        name: its name in docs/audit.md.
        says: a sentence that describes it.
        count: how often it occurs in the sample.
        of: what is counted: "records", "messages" ...
        records: how many records of the sample have it.
        tokens: tokens of the sample that are at stake: lost, wrongly trained, or trained with a fault.
        mend: what to change, if possible a line of the config.
        example: the first record of the sample that has it; None for a problem of the config or the template.
    """

    name: str
    says: str
    count: int
    of: str
    records: int
    tokens: int
    mend: str
    example: Example | None = None

    def share_of(self, all_tokens: int) -> float:
        """The share of all tokens of the sample that is at stake."""
        return min(1.0, self.tokens / max(1, all_tokens))

    def as_json(self, all_tokens: int) -> dict[str, Any]:
        """The finding in the JSON of an audit; `all_tokens`: the tokens of the sample."""
        return {**asdict(self), "share_of_tokens": round(self.share_of(all_tokens), 6)}


@dataclass(slots=True)
class Hits:
    """Collects the places of one problem.

    Attributes:
        sample: the sample.
        of: what is counted, see `Finding`.
    """

    sample: Sample
    of: str = "records"
    count: int = 0
    tokens: float = 0
    example: Example | None = None
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def add(self, part: Part, line: int, text: str = "", tokens: float | None = None) -> None:
        """Counts one place.

        Args:
            part, line: the record.
            text: the text of the example.
            tokens: tokens at stake; None: all tokens of the record, which count once.
        """
        key = (part.number, line)
        if tokens is None:
            tokens = 0 if key in self._seen else self.sample.tokens_of(part, line)
        self._seen.add(key)
        self.count += 1
        self.tokens += tokens
        if self.example is None:
            self.example = self.sample.example(part, line, text)

    @property
    def records(self) -> int:
        """How many records have the problem."""
        return len(self._seen)

    @property
    def told(self) -> str:
        """The count in words: `1 record`, `2,000 texts`."""
        return counted(self.count, self.of.removesuffix("s"))

    def finding(self, name: str, says: str, mend: str, at_least: float = 0, of: int | None = None) -> Iterator[Finding]:
        """The finding, if more than the share `at_least` of the sample's records, or of `of` places, have it."""
        found, every = self.count, of
        if every is None:
            found, every = self.records, max(1, self.sample.count)
        if found > at_least * every:
            yield Finding(name, says, self.count, self.of, self.records, round(self.tokens), mend, self.example)


_RARE = 0.01
"""Below this share of records, control characters, copies and the like are normal for web texts, and no finding."""

_ASKED_FOR = 0.05
"""Above this share, drops that the config asks for (`too_short`, `too_long`) are a finding. Other drops make a run
fail at this share."""


def left_out(sample: Sample) -> Iterator[Finding]:
    """Records that are rejected, or dropped because nothing is trained; or that the config drops, if they are many."""
    found: dict[tuple[str, str], Hits] = {}
    for kind, reason, part, line in sample.left_out():
        if reason == "rows_without_loss":
            masked, rows = part.masked, part.masked.line == line
            counts = trained_tokens(masked.schema.values(), masked.columns).values()
            if any((trained[rows] > 0).any() for trained in counts):
                reason = "cut"
        message = part.rows.ledger.messages.get(line, "")
        found.setdefault((kind, reason), Hits(sample)).add(part, line, " ".join(message.split()))
    causes = [
        text
        for text in lost_causes(sample.plan.shown_as("dropped"), sample.view)
        if "not there" in text or " hold" in text
    ]
    for (kind, reason), hits in found.items():
        name, at_least, says = f"{kind}_{reason}", 0.0, f"{hits.told}: {kind} as {reason}"
        mend = ADVICE.get(reason, "mend these records as the message says, or take them out")
        if reason == "cut":
            name, says = "dropped_rows_without_loss", f"all trained tokens are cut off in {hits.told}"
            now = sample.longest or sample.config.preprocessing.max_seq_len
            mend = f'"preprocessing": {{"{sample.view.limit}": ...}}, now {now:,}'
        elif reason in LOST:
            says += "".join(f"; {text}" for text in causes if f"first record of {reason!r}" in text)
            mend = 'the "field" of the sections, the roles in "mask", or the "weight" of messages; or take these out'
        elif kind == "dropped":
            at_least = _ASKED_FOR
        yield from hits.finding(name, says, mend, at_least)


def bad_answers(sample: Sample) -> Iterator[Finding]:
    """Answers that a field of their record marks as bad, but that are trained like others."""
    originals = list(sample.originals())
    for found in verdicts([record for _, _, record in originals], sample.config.field_use):
        hits = Hits(sample)
        for place in found.bad:
            part, line, record = originals[place]
            value = record.get(found.name)
            hits.add(part, line, f"{found.name}: {found.which if value is None else _short(value)}")
        yield from hits.finding("bad_answers", f"{found}: {hits.told} bad ({found.which})", found.mend)


_PARTS_OF_PROMPTS = {
    *("system", "system_prompt", "instruction", "instructions", "input", "context", "history", "question", "query"),
    *("prompt", "messages", "conversations", "conversation", "tools", "functions", "reasoning", "reasoning_content"),
    *("thinking", "completion", "response", "responses", "output", "answer", "chosen", "rejected", "text", "content"),
    *("documents", "contexts", "passages", "cot", "complex_cot", "chain_of_thought", "rationale"),
}
"""Fields that usually hold text of prompts or answers. Other fields (ids, sources, scores) are metadata."""

_ANSWERS_FOR_JUDGES = {"answer", "ground_truth", "solution"}
"""Beside sampled responses these fields are for a verifier, and are not trained."""


def unread(sample: Sample) -> list[str]:
    """All fields that the config does not read, the most frequent first."""
    read = sample.config.field_use.known
    counts = Counter(name for _, _, record in sample.originals() for name in record if name not in read)
    return [name for name, _ in counts.most_common()]


def fields_not_read(sample: Sample) -> Iterator[Finding]:
    """Fields with text of prompts or answers that no section reads, unless a field that is read repeats the text."""
    read = sample.config.field_use.known
    sampled = any(spec.kind == "list" for spec in sample.config.outputs()) or sample.config.input.rollouts is not None
    known = _PARTS_OF_PROMPTS - (_ANSWERS_FOR_JUDGES if sampled else set())
    found: dict[str, Hits] = {}
    for part, line, record in sample.originals():
        texts = {name: [*texts_in(record[name])] for name in record if name.lower() in known and name not in read}
        told = squeezed("\n".join(text for name in read for text in texts_in(record.get(name))))
        for name, own in texts.items():
            if all(squeezed(text) in told or text in ("on", "off") for text in own):
                continue  # for instance UltraChat, whose `prompt` repeats the first message, and Nemotron's `reasoning`
            hits = found.setdefault(name, Hits(sample))
            size = sample.tokens_in("".join(own))
            hits.add(part, line, f"{name}: {_short(record[name])}", size)
    for name, hits in found.items():
        says = f"the config does not read the field {name!r}, which has text in {hits.told}"
        mend = f'a section of its own: {{"field": {json.dumps(name)}, "action": "mask"}} (or "train"); or take it out'
        if name in ("tools", "functions"):
            mend = 'give "template": "conversation" to the section of the messages; the field must be called \'tools\''
        elif sample.conversations:  # a section of text cannot stand beside them
            mend = 'put it into messages ({"role": "system", "content": ...}; "reasoning_content"), or take it out'
        yield from hits.finding("field_not_read", says, mend, _RARE)


def squeezed(text: str) -> str:
    return "".join(text.split())


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def duplicates(sample: Sample) -> Iterator[Finding]:
    """Records that are equal in all fields that are read.

    If n of m records are drawn, both records of a pair are drawn with a chance of (n / m) ** 2. So a pair in the sample
    stands for m / n pairs. A record with three or more copies in the sample is frequent: its share of the sample is its
    share of the input. One pair may be chance, so a finding needs two.
    """
    if sample.config.preprocessing.deduplicate is not None:
        return
    read, hits, drawn = sample.config.field_use.tokens, Hits(sample), Counter[str]()
    for part, line, record in sample.originals():
        told = {name: record[name] for name in record if name in read}
        if not any(told.values()):
            continue  # empty records are another finding
        text = json.dumps(told, sort_keys=True)
        if text in drawn:
            hits.add(part, line)
        drawn[text] += 1
    grow = max(1.0, sample.drawn.about / max(1, sample.count))
    copies = sum(grow if count == 2 else count - 1 for count in drawn.values() if count > 1)
    share = min(1.0, copies / max(1, sample.count))
    if hits.count >= 2 and share > _RARE:
        shown = f"{share:.1%}" if share < 0.995 else "nearly all"
        says = f"{hits.told} of the sample are copies of others in it; that is {shown} of the input, about"
        yield from hits.finding("duplicates", says, '"preprocessing": {"deduplicate": {}}')


SAID = ("content", "tool_calls", "function_call", *REASONING_FIELDS)
"""Keys of what a message says. A run rejects records that lose a content or a call, and counts lost reasoning."""


def empty_turns(sample: Sample) -> Iterator[Finding]:
    """Empty messages: no text, reasoning or call. Those of the system (Nemotron) and results of tools may be empty."""
    hits, roles = Hits(sample, "messages"), Counter[str]()
    for chat, place, message in messages_of(sample):
        role = message.get("role")
        content = message.get("content")
        said = not isinstance(content, str | list | None) or has_words(content) or any(map(message.get, SAID[1:]))
        said = said or ("content" not in message and any(texts_in(message)))
        if isinstance(role, str) and role not in ("system", "tool", "function") and not said:
            hits.add(chat.part, chat.line, f"{chat.field}[{place}] ({role}) is empty")
            roles[role] += 1
    told = ", ".join(f"{count:,} of {role!r}" for role, count in roles.most_common(4))
    says = f"empty messages: {told}; a model learns to say nothing, or to answer nothing"
    yield from hits.finding("empty_turns", says, "take out these records")


def repeated_turns(sample: Sample) -> Iterator[Finding]:
    """Messages that repeat the last message with the same role, or a question and answer that repeat the last ones."""
    hits = Hits(sample, "messages")
    for chat in sample.conversations:
        said = [(message.get("role"), text_of(message).strip()) for message in chat.messages]
        for place, (role, text) in enumerate(said):
            twice = place > 0 and said[place - 1] == (role, text)
            pair = place > 2 and said[place - 1 : place + 1] == said[place - 3 : place - 1]
            if text and (twice or pair):
                where = f"{chat.field}[{place}] ({role}) repeats: {text}"
                hits.add(chat.part, chat.line, where, sample.tokens_in(text))
    says = f"the text just before is repeated in {hits.told}: a model learns to repeat itself"
    # None of 17,193 real dialogues does this.
    yield from hits.finding("repeated_turns", says, "take out the repeated messages", 0.002)


_CHARACTERS = {
    # Without tab, line ends, and the joiners and marks that scripts and emoji need. Thai, Lao, Burmese and Khmer need
    # U+200B: it stands between words.
    "control_characters": (
        re.compile(
            "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
            "|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b(?![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])"
        ),
        "control characters, or characters of width zero, are in {}",
        "take these characters out of the texts",
    ),
    "broken_characters": (
        re.compile("\ufffd|Ã[\x80-\xbf]|â€[\x80-\xbf™œ\x9d“”˜¦]|[\x80-\xbf]Ã"),
        "characters that were decoded wrongly (U+FFFD, or UTF-8 read as Latin-1) are in {}",
        "read the source again, in its own encoding",
    ),
}
"""Finding -> (pattern, sentence, what to do)."""


def characters(sample: Sample) -> Iterator[Finding]:
    """Texts with invisible characters, or texts that were decoded wrongly when they were made."""
    for name, (pattern, says, mend) in _CHARACTERS.items():
        hits = Hits(sample, "texts")
        for part, line, text in sample.texts():
            if (match := pattern.search(text)) is not None:
                hits.add(part, line, f"U+{ord(match[0][0]):04X} in {_around(match)}")
        yield from hits.finding(name, says.format(hits.told), mend, _RARE)


_MARKUP = re.compile(
    r"<\|(?:im_start|im_end|im_sep|eot_id|start_header_id|end_header_id|begin_of_text|end_of_text|endoftext|eom_id|"
    r"user|assistant|system|end|endofprompt|start|channel|return)\|>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|"
    r"<｜(?:User|Assistant|end▁of▁sentence)｜>|\n\n(?:Human|Assistant): |### (?:Instruction|Response|Human|Assistant):"
)
"""The markup that chat formats write around messages."""


def markup_of_chats(sample: Sample) -> Iterator[Finding]:
    """Messages with the markup of a chat format: another template has already rendered them."""
    controls = {token.content for token in sample.tokenizer.added.values()}
    hits = Hits(sample, "messages")
    for chat, place, message in messages_of(sample):
        match = next((match for match in _MARKUP.finditer(text_of(message)) if match[0] not in controls), None)
        if match is not None:
            hits.add(chat.part, chat.line, f"{chat.field}[{place}]: {_around(match)}")
    says = f"the markup of another chat format than the tokenizer's is in {hits.told}, as if they were rendered before"
    mend = "take the markup out of the messages: the template writes its own"
    yield from hits.finding("markup_in_text", says, mend, 0.002)


def control_tokens(sample: Sample) -> Iterator[Finding]:
    """Texts with the text of a control token, which the tokenizer turns into the token."""
    if sample.config.preprocessing.control_tokens != "keep" or sample.config.input.tokenized:
        return
    guard = guard_of(sample.tokenizer, sample.template, "reject")
    eos = sample.tokenizer.special_tokens.get("eos_token", "")
    hits, found = Hits(sample, "texts"), set[str]()
    for chat, place, message in messages_of(sample):
        if (match := guard.find_in(dict(message))) is not None:
            hits.add(chat.part, chat.line, f"{chat.field}[{place}]: {_around(match)}")
            found.add(match[0])
    for part, line, text in sample.plain_texts():
        # Plain texts of prompt and completion may end with their EOS.
        match = guard.find(text.removesuffix(eos) if eos and sample.template is None else text)
        if match is not None:
            hits.add(part, line, _around(match))
            found.add(match[0])
    says = f"the text of a control token, which becomes the token itself, is in {hits.told}"
    mend = '"preprocessing": {"control_tokens": "escape"} (or "reject"), or take it out of the texts'
    words = (token.content for token in sample.tokenizer.added.values() if not token.special)
    if found <= {text for text in words if text in sample.template_source or text in ("<think>", "</think>")}:
        mend = f"nothing, if the texts hold calls, results or reasoning as the model is to write them; else {mend}"
    yield from hits.finding("control_tokens", says, mend)


def _around(match: re.Match[str]) -> str:
    """The match, with the text on both sides."""
    start = max(0, match.start() - 40)
    return f"{'... ' * (start > 0)}{match.string[start : match.end() + 40]}"


def messages_of(sample: Sample) -> Iterator[tuple[Conversation, int, Mapping[str, Any]]]:
    """(conversation, place, message) of every message that sections read."""
    for chat in sample.conversations:
        for place, message in enumerate(chat.messages):
            yield chat, place, message
