"""Checks of ids and masks: trained tokens, begin and end of rows, cuts."""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from beam_prep.audit.of_records import SAID, Finding, Hits, messages_of, squeezed
from beam_prep.chat.control import end_ids
from beam_prep.chat.environment import asks_for_date
from beam_prep.chat.messages import holds_objects
from beam_prep.data.ragged import Array
from beam_prep.reading.adapters import template_kwargs
from beam_prep.reading.decontaminate import texts_in
from beam_prep.recipe import text_rules
from beam_prep.sample import Conversation, Row, Sample, text_of, today
from beam_prep.shards import report
from beam_prep.shards.report import CUT_SHARE, OFTEN_MASKED, is_usual, near_name, near_role
from beam_prep.tokens.rows import NEAR, RoleMask, endless_roles
from beam_prep.tokens.tokenizer import Tokenizer

_DATE = re.compile(
    r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{4}\b|"
    r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December) \d{1,2}, \d{4}\b"
)


def dates(sample: Sample) -> Iterator[Finding]:
    """A template that asks for today's date, which the config does not set; or that writes a date of its own."""
    if sample.template is None or sample.config.input.date is not None:
        return
    if asks_for_date(sample.template_source):
        says = "the chat template writes today's date (strftime_now): another day would give other bytes, so no run "
        mend = f'"input": {{"date": "{today()}"}}'
        yield Finding("date_wanted", f"{says}begins", 1, "templates", sample.count, sample.tokens, mend)
        return
    written = {*_DATE.findall(sample.template_source)}
    hits = Hits(sample, "rows")
    for chat, text, _ in _rendered(sample) if written else ():
        if own := next((each for each in written if each in text), None):
            hits.add(chat.part, chat.line, f"the template writes {own!r}", sample.tokens_in(own))
    says = f"the chat template writes a date of its own into {hits.told}: {', '.join(sorted(written)[:3])}"
    mend = '"input": {"chat_template": ...} without the date; or the records\' "chat_template_kwargs", if it reads them'
    yield from hits.finding("date_in_template", says, mend)


def not_written(sample: Sample) -> Iterator[Finding]:
    """Records of which the template leaves out a part. To leave reasoning out of history is no finding."""
    rendered = [(part, part.rendered) for part in sample.parts if part.rendered is not None]
    totals = Counter[str]()
    for _, block in rendered:
        totals.update({name: int(counts.sum()) for name, counts in block.counters.items()})
    for name in report.not_written(totals):
        hits, (_, says, mend) = Hits(sample), report.NOT_WRITTEN[name]
        for part, block in rendered:
            counts = block.counters.get(name, np.zeros(len(block.line)))
            for line in block.line[counts > 0].tolist():
                hits.add(part, line)
        yield from hits.finding(name, says.format(hits.told), mend)


def keys_not_written(sample: Sample) -> list[str]:
    """Keys of messages, and variables of records, with words that no row has; without those that a run counts."""
    originals = {(part.number, line): record for part, line, record in sample.originals()}
    found = dict[str, None]()
    for chat, text, _ in _rendered(sample):
        own, told = template_kwargs(originals[chat.part.number, chat.line]), squeezed(text)
        keys = [(f"{chat.field}[].{key}", each[key]) for each in chat.messages for key in each if key not in SAID]
        keys += [(f"chat_template_kwargs.{key}", own[key]) for key in own]
        # Single words are states or ids.
        words = [
            (name, each) for name, value in keys for each in texts_in(value) if " " in each or holds_objects(value)
        ]
        found |= {name: None for name, each in words if squeezed(each) not in told}
    return [*found]


def _rendered(sample: Sample) -> Iterator[tuple[Conversation, str, str]]:
    """(conversation, its texts, what of them the assistant says) of each conversation that is not rejected."""
    masked = {part.number: {*part.masked.line.tolist()} for part in sample.parts}
    for chat in sample.conversations:
        if (rendered := chat.part.rendered) is None or chat.line not in masked[chat.part.number]:
            continue
        rows = np.searchsorted(rendered.line, [chat.line, chat.line + 1])
        texts, said = "", ""
        for pieces in rendered.pieces.values():
            answers = [code for code, role in enumerate(pieces.roles) if role == "assistant"]
            for place in range(*pieces.sequences[pieces.rows[rows]].tolist()):
                text, end = pieces.texts[place], -1
                texts += f"{text}\n"
                for segment in pieces.segments[pieces.borders[place] : pieces.borders[place + 1]]:
                    if segment["role"] in answers:
                        # A NUL between segments that are apart, so no answer is found across them.
                        said += "" if segment["start"] == end else "\0"
                        end = int(segment["stop"])
                        said += text[segment["start"] : end]
        yield chat, texts, said


_FEW = 0.01
"""The share of rows above which cut rows, merged tokens and the like are a finding; a few such rows are normal."""

_LITTLE = 0.02
"""A smaller share of trained tokens is a finding: a model reads fifty tokens to train on one."""


def roles_not_in_data(sample: Sample) -> Iterator[Finding]:
    """Roles that `mask` trains, and that no message has."""
    view = sample.view
    roles = sorted({m["role"] for _, _, m in messages_of(sample) if isinstance(m.get("role"), str)})
    for role, rule in (view.mask or {}).items() if roles else ():
        if role in roles or role in sample.other_roles or rule == "mask":
            continue  # a `mask` rule for an absent role does no harm
        near = near_name(role, [other for other in roles if other not in (view.mask or ())])
        found = ", ".join(map(repr, roles[:8]))
        says = f"`mask` trains the role {role!r}, which no message has; found: {found}"
        answers = near or next((other for other in roles if other not in OFTEN_MASKED), None)
        mend = f'"mask": {{"{answers}": "{rule}"}}, in place of {role!r}'
        if answers is None:
            mend = "no message is an answer: name the field with the answers in the sections"
        tokens = sample.roles.get(near or "", {}).get("tokens", 0) or sample.tokens
        yield Finding("role_not_in_data", says, 1, "roles", sample.count, tokens, mend)


def roles_not_in_mask(sample: Sample) -> Iterator[Finding]:
    """Roles of messages that `mask` does not name, except roles that most configs leave to `mask_default`."""
    view, found = sample.view, dict[str, Hits]()
    for chat, place, message in messages_of(sample) if view.mask is not None else ():
        role, text = message.get("role"), text_of(message)
        if isinstance(role, str) and role not in (view.mask or ()) and not is_usual(role, view):
            hits = found.setdefault(role, Hits(sample, "messages"))
            hits.add(chat.part, chat.line, f"{chat.field}[{place}]: {text}", sample.tokens_in(text))
    for role, hits in sorted(found.items(), key=lambda entry: -entry[1].tokens)[:8]:
        near = near_role(role, view)
        done, other = ("trained", "mask") if view.mask_default == "train" else ("not trained", "train")
        says = f"`mask` does not name the role {role!r}, of {hits.told}: {done}"
        says += f"; did you mean {near!r}?" if near else ""
        rule = "mask" if near in OFTEN_MASKED else other
        yield from hits.finding("role_not_in_mask", says, f'"mask": {{"{role}": "{rule}"}}')


def answers_not_trained(sample: Sample) -> Iterator[Finding]:
    """Other roles are trained, but no message of the assistant is."""
    counts = sample.roles.get("assistant")
    trained = [role for role, said in sample.roles.items() if said["trained"]]
    if counts is not None and counts["tokens"] and trained and "assistant" not in trained:
        says = f"nothing that 'assistant' says is trained; trained: {', '.join(map(repr, trained))}"
        mend, messages = '"mask": {"assistant": "train"}', counts["messages"]
        yield Finding("answers_not_trained", says, messages, "messages", sample.count, counts["tokens"], mend)


def little_trained(sample: Sample) -> Iterator[Finding]:
    """A very small share of the tokens is trained."""
    rows, tokens, trained = sample.kept
    if rows and trained and trained < _LITTLE * tokens:
        says = f"{trained / tokens:.2%} of the tokens are trained: {tokens:,} are read to learn from {trained:,}"
        mend = '"mask": {"assistant": "train"} in place of "last", or "action": "$role" in place of "$last"'
        yield Finding("little_trained", says, rows, "rows", sample.count, tokens - trained, mend)


def config_warnings(sample: Sample) -> Iterator[Finding]:
    """Settings that are allowed but probably not meant: the warnings of a run."""
    for text in sample.config.warnings:
        yield Finding("config", text, 1, "settings", sample.count, sample.tokens, "as it says")


# Begin and end of rows.


def double_bos(sample: Sample) -> Iterator[Finding]:
    """Sequences that begin with two BOS tokens."""
    hits, bos = Hits(sample, "rows"), sample.tokenizer.bos_id
    for row in sample.rows:
        if row.ids[:2].tolist() == [bos, bos]:
            hits.add(row.part, row.line, _begin_of(sample, row))
    says = f"two BOS tokens are at the beginning of {hits.told}"
    mend = 'take it out of the texts, or "add_special_tokens": false for the first section'
    if sample.template is not None:
        mend = '"preprocessing": {"bos": "strip"} or "tokenizer", or a template that writes it once'
    yield from hits.finding("double_bos", says, mend)


def no_bos(sample: Sample) -> Iterator[Finding]:
    """Sequences without BOS, although the tokenizer adds BOS to every text."""
    bos, given = sample.tokenizer.bos_id, sample.config
    if bos is None or given.input.tokenized or given.preprocessing.bos == "strip":
        return
    if sample.tokenizer.encode(["a"], add_special_tokens=True).flat[:1].tolist() != [bos]:
        return  # models of such tokenizers are trained without BOS
    hits = Hits(sample, "rows")
    for row in sample.rows:
        if len(row.ids) and row.ids[0] != bos and row.output.kind != "list":  # elements of lists follow a prompt
            hits.add(row.part, row.line, _begin_of(sample, row))
    says = f"the BOS token, which this tokenizer puts in front of every text, is missing in {hits.told}"
    mend = '"add_special_tokens": true for the first section'
    if sample.template is not None:
        mend = '"preprocessing": {"bos": "tokenizer"}'
    yield from hits.finding("no_bos", says, mend)


def _wants_ends(sample: Sample) -> bool:
    options = sample.config.mask_options
    return not sample.config.input.tokenized and (options is None or options.eos != "mask")


def no_end(sample: Sample) -> Iterator[Finding]:
    """Texts after which no end token is trained. `roles_without_end` finds turns of a template."""
    if not _wants_ends(sample):
        return
    ends, hits, seen = end_ids(sample.tokenizer), Hits(sample, "rows"), 0
    texts = [row for row in sample.rows if row.output.trains and not row.output.has_template]
    for row in texts:
        trained = row.ids if row.mask is None else row.ids[row.mask == 1]
        seen += len(trained) > 0
        if len(trained) and ends.isdisjoint(trained[-NEAR:].tolist()):
            hits.add(row.part, row.line, _end_of(sample, trained))
    says = f"no end token is trained in {hits.told} of {seen:,}: a model never learns to stop"
    mend = '"preprocessing": {"eos": "if_missing"}'
    if any(row.output.kind == "list" for row in texts):
        mend = "end the texts of the lists with the EOS token's text: preprocessing.eos does not reach lists"
    elif sample.tokenizer.id_of("eos_token") is None:
        mend = f"name an eos_token in the tokenizer, then {mend}"
    yield from hits.finding("no_end", says, mend, _FEW, seen)


def roles_without_end(sample: Sample) -> Iterator[Finding]:
    """Roles whose trained turns never end with an end token."""
    given, tokenizer = sample.config, sample.tokenizer
    if sample.template is None or not _wants_ends(sample):
        return
    policy = RoleMask(given.mask, given.mask_default, text_rules(given).mask_options)
    batches = [part.tokenized for part in sample.parts if part.tokenized is not None]
    eos = tokenizer.special_tokens.get("eos_token")
    wanted = "its EOS token (name an eos_token in the tokenizer)" if eos is None else repr(eos)
    for role, ids in endless_roles(batches, policy, end_ids(tokenizer), tokenizer.decode).items():
        tail = tokenizer.decode(ids)
        counts = sample.roles.get(role, {})
        says = f"no end token is trained behind what {role!r} says, so a model does not learn to stop: its turns end "
        says += f"with {tail.strip()[-40:]!r}"
        mend = f'"input": {{"chat_template": ...}} with a template that writes {wanted} behind each of its turns, and '
        mend += "behind that {% endgeneration %}; or, if that text is meant as the end: make it a special token in "
        mend += "tokenizer.json, with its normalized, single_word and split_special_tokens (in its config) false"
        messages, tokens = counts.get("messages", 1), counts.get("tokens", sample.tokens)
        yield Finding("no_end", says, messages, "messages", sample.count, tokens, mend)


def double_end(sample: Sample) -> Iterator[Finding]:
    """The same special token twice in a row. BOS, unknown tokens and pads are left out: they end nothing."""
    tokenizer = sample.tokenizer
    others = {tokenizer.id_of(name) for name in ("bos_token", "unk_token", "pad_token")}
    special = [each for each in {*(tokenizer.special_ids - others), tokenizer.id_of("eos_token")} if each is not None]
    hits = Hits(sample, "places")
    for row in sample.rows if not sample.config.input.tokenized else ():
        same = (row.ids[1:] == row.ids[:-1]) & np.isin(row.ids[1:], special)
        for place in np.flatnonzero(same).tolist():
            hits.add(row.part, row.line, _end_of(sample, row.ids[: place + 2]))
    says = f"the same special token follows itself at {hits.told}"
    mend = "take the token out of the texts, or out of the template"
    if sample.template is None and sample.config.preprocessing.eos != "never":
        mend = '"preprocessing": {"eos": "if_missing"}, in place of "always"'
        if adds_eos(tokenizer):
            mend = '"preprocessing": {"eos": "never"}: this tokenizer adds its EOS by itself'
    yield from hits.finding("double_end", says, mend)


# Cuts.


def cut_off(sample: Sample) -> Iterator[Finding]:
    """A large share of the tokens is cut off; or the run would fail at the first long row."""
    hits, longest, mode = Hits(sample, "rows"), sample.longest, sample.config.preprocessing.truncation_mode
    if longest is None or mode == "drop":
        return  # dropped records are another finding
    for row in sample.rows:
        if (more := len(row.ids) - longest) > 0:
            text = f"{len(row.ids):,} tokens, {more:,} more than {sample.view.limit}"
            hits.add(row.part, row.line, text, more)
    if hits.tokens <= (0 if mode == "error" else CUT_SHARE * sample.tokens):
        return
    share = hits.tokens / max(1, sample.tokens)
    what = "the run ends at the first of them" if mode == "error" else f"{share:.1%} of all tokens are cut off"
    says = f"{hits.told} with more tokens than {sample.view.limit} ({longest:,}): {what}"
    mend = f'"preprocessing": {{"{sample.view.limit}": {_longer(sample)}}}'
    if sample.view.packs:
        mend += ', or "truncation_mode": "chunk"'
    yield from hits.finding("cut_off", says, mend)


def answers_cut(sample: Sample) -> Iterator[Finding]:
    """Answers of which only a part is left: the cut is between two trained tokens."""
    longest, mode = sample.longest, sample.config.preprocessing.truncation_mode
    if longest is None or mode == "drop":
        return
    hits = Hits(sample, "rows")
    for row in sample.rows:
        is_chat = row.output.has_template or len(row.output.sections) > 1  # a text is no answer
        if row.mask is None or not is_chat or len(row.ids) <= longest:
            continue
        border = len(row.ids) - longest if mode == "keep_end" else longest
        if row.mask[border - 1] and row.mask[border]:
            lost = int((row.mask[:border] if mode == "keep_end" else row.mask[border:]).sum())
            hits.add(row.part, row.line, f"an answer is cut in two, {lost:,} trained tokens are cut off", lost)
    says = f"{sample.view.limit}, {longest:,}, cuts through an answer, which is trained in part, in {hits.told}"
    mend = f'"preprocessing": {{"{sample.view.limit}": {_longer(sample)}}}, or "truncation_mode": "drop"'
    yield from hits.finding("answers_cut", says, mend, _FEW, sum(len(part.masked) for part in sample.parts))


def enough(sizes: Array, least: int, share: float = _FEW) -> int:
    """The length, `least` or twice, four times ... that, which cuts off at most a share of all tokens.

    Args:
        sizes: int64, tokens of rows.
        least: a power of two.
        share: that may be cut off.
    """
    while np.maximum(sizes - least, 0).sum() > share * sizes.sum():
        least *= 2
    return least


def _longer(sample: Sample) -> int:
    """What is enough, above the current length."""
    share = 0 if sample.config.preprocessing.truncation_mode == "error" else _FEW
    return enough(sample.lengths, 1 << (sample.longest or 1).bit_length(), share)


def prompt_not_prefix(sample: Sample) -> Iterator[Finding]:
    """Rows with a token that holds text of both prompt and answer."""
    hits = Hits(sample, "rows")
    for part in sample.parts:
        counts = part.masked.counters.get("prompt_not_prefix", np.zeros(0, np.int64))
        for row in np.flatnonzero(counts).tolist():
            hits.add(part, int(part.masked.line[row]), "", 1)
    says = f"a token reaches over the border of prompt and answer, and is trained whole, in {hits.told}"
    mend = "put the space that is between them at the beginning of the answer, not at the end of the prompt"
    if sample.config.input.implicit_prompt or sample.conversations:
        mend = "nothing, where the template writes the border, or both sides begin with the same letters; else " + mend
    yield from hits.finding("prompt_not_prefix", says, mend, _FEW, sum(len(part.masked) for part in sample.parts))


def answers_in_part(sample: Sample) -> Iterator[Finding]:
    """Answers that the rendering holds, and of which not all is trained: `{% generation %}` around a part of them."""
    given, hits, compared = sample.config, Hits(sample, "messages"), 0
    actions = {section.action for spec in given.outputs() for section in spec.sections if section.template}
    if given.mask_options is not None or given.mask.get("assistant", given.mask_default) != "train":
        return
    for chat, text, trained in _rendered(sample) if actions == {"$role"} else ():
        text, trained = squeezed(text), squeezed(trained)
        for place, message in enumerate(chat.messages):
            said = squeezed(text_of(message))
            if not said or message.get("role") != "assistant" or said not in text:
                continue
            compared += 1
            if said not in trained:
                size = sample.tokens_in(text_of(message))
                hits.add(chat.part, chat.line, f"{chat.field}[{place}]: {text_of(message)}", size)
    says = f"not all words are trained in {hits.told} of the assistant, of {compared:,} that were compared"
    mend = "{% generation %} in the chat template must hold all that the assistant says, and its end token"
    yield from hits.finding("answers_in_part", says, mend, _FEW, compared)


_UNKNOWN = 0.001
"""A larger share of unknown tokens is a finding: a tokenizer for the language has none."""


def unknown_tokens(sample: Sample) -> Iterator[Finding]:
    """Characters that the tokenizer encodes as the unknown token."""
    unknown = sample.tokenizer.id_of("unk_token")
    if unknown is None or sample.config.input.tokenized or unknown == sample.tokenizer.id_of("eos_token"):
        return
    hits, total = Hits(sample, "tokens"), int(sample.lengths.sum())
    for row in sample.rows:
        if count := int((row.ids == unknown).sum()):
            hits.add(row.part, row.line, "", count)
    if hits.tokens > _UNKNOWN * total:
        says = (
            f"{hits.tokens:,.0f} tokens are unknown ({hits.tokens / total:.1%}): the tokenizer lacks these characters"
        )
        yield from hits.finding("unknown_tokens", says, "--tokenizer_path of a tokenizer for these languages")


def adds_eos(tokenizer: Tokenizer) -> bool:
    """True if a tokenizer puts its EOS token behind every text by itself."""
    ids = tokenizer.encode(["a"], add_special_tokens=True).flat
    return bool(len(ids) and ids[-1] == tokenizer.id_of("eos_token"))


def _begin_of(sample: Sample, row: Row) -> str:
    return f"it begins: {sample.tokenizer.decode(row.ids[:24].tolist())}"


def _end_of(sample: Sample, ids: Array) -> str:
    return f"it ends: {sample.tokenizer.decode(ids[-21:].tolist())}"
