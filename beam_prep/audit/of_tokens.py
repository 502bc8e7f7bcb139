"""Checks of ids and masks: trained tokens, begin and end of rows, cuts."""

import re
import unicodedata
from collections.abc import Callable, Iterator

import numpy as np

from beam_prep.audit.finding import Finding, Hits
from beam_prep.chat.control import end_ids
from beam_prep.data.ragged import Array, Ragged
from beam_prep.data.rendered import Rendered
from beam_prep.recipe import text_rules
from beam_prep.sample.sample import Conversation, Sample, text_of
from beam_prep.shards.report import CUT_SHARE, OFTEN_MASKED, is_usual, near_name
from beam_prep.tokens.ends import NEAR, Endless, endless_roles
from beam_prep.tokens.mask import RoleMask
from beam_prep.tokens.tokenize import tokenize
from beam_prep.tokens.tokenizer import Tokenizer

_DATE = re.compile(
    r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{4}\b|"
    r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December) \d{1,2}, \d{4}\b"
)


def prints_date(sample: Sample) -> Iterator[Finding]:
    """A date in the rendered text that is neither in the record nor set by the config."""
    if sample.template is None or sample.config.input.date is not None:
        return
    hits, dates = Hits(sample, "rows"), dict[str, None]()
    for chat, text in _rendered(sample):
        if not (found := _DATE.findall(text)):
            continue
        told = chat.part.records.ledger
        raw = told.raw[told.starts[chat.line] : told.ends[chat.line]].decode("utf-8", "replace")
        own = [date for date in found if date not in raw]
        if own:
            hits.add(chat.part, chat.line, f"the template writes {own[0]!r}", len(own[0]) * sample.tokens_per_character)
            dates[own[0]] = None
    says = f"the chat template writes a date of its own into {hits.told}: {', '.join(list(dates)[:3])}"
    mend = '"input": {"chat_template": ...} without the date; or the records\' "chat_template_kwargs", if it reads them'
    yield from hits.finding("date_in_template", says, mend)


_NOT_WRITTEN = {
    "tools_not_written": (
        "the chat template does not write the tools of {}",
        '"input": {"chat_template": ...} that writes `tools` (configs/tools.jinja does), "template": "conversation"',
    ),
    "texts_not_written": (
        "the chat template does not write a content or a call of {}",
        '"input": {"chat_template": ...} that writes them, or "not_rendered": "reject"',
    ),
    "reasoning_not_written": (
        "the chat template writes no reasoning, but there is reasoning in {}",
        '"input": {"chat_template": ...} that writes `reasoning_content`',
    ),
}


def not_written(sample: Sample) -> Iterator[Finding]:
    """Records of which the template leaves out a part. To leave reasoning out of history is no finding."""
    counters = [part.rendered.counters for part in sample.parts if part.rendered is not None]
    writes_reasoning = any("reasoning_written" in counts for counts in counters)
    for name, (says, mend) in _NOT_WRITTEN.items():
        hits = Hits(sample)
        for part in sample.parts:
            counts = {} if part.rendered is None else part.rendered.counters
            if part.rendered is None or name not in counts or (writes_reasoning and name == "reasoning_not_written"):
                continue
            for line in part.rendered.line[np.flatnonzero(counts[name])].tolist():
                hits.add(part, line)
        yield from hits.finding(name, says.format(hits.told), mend)


def _rendered(sample: Sample) -> Iterator[tuple[Conversation, str]]:
    """Each conversation that was rendered, with all texts of its rows."""
    for chat in sample.conversations:
        if (rendered := chat.part.rendered) is None:
            continue
        rows = np.searchsorted(rendered.line, [chat.line, chat.line + 1])
        if rows[0] == rows[1]:
            continue
        texts = []
        for pieces in rendered.pieces.values():
            first, last = (int(pieces.sequences[pieces.rows[at]]) for at in rows)
            texts += [pieces.texts[at] for at in range(first, last)]
        yield chat, "\n".join(texts)


_FEW = 0.01
"""The share of rows above which cut rows, merged tokens and the like are a finding; a few such rows are normal."""

_LITTLE = 0.02
"""A smaller share of trained tokens is a finding: a model reads fifty tokens to train on one."""


def roles_not_in_data(sample: Sample) -> Iterator[Finding]:
    """Roles that `mask` trains, and that no message has."""
    view = sample.view
    roles = {m["role"] for chat in sample.conversations for m in chat.messages if isinstance(m.get("role"), str)}
    if view.mask is None or not roles:
        return
    for role, rule in view.mask.items():
        if role in roles or role in sample.other_roles or rule == "mask":
            continue  # a `mask` rule for an absent role does no harm
        near = near_name(role, [other for other in sorted(roles) if other not in (view.mask or ())])
        found = ", ".join(map(repr, sorted(roles)[:8]))
        says = f"`mask` trains the role {role!r}, which no message has; found: {found}"
        answers = near or next((other for other in sorted(roles) if other not in OFTEN_MASKED), None)
        mend = f'"mask": {{"{answers}": "{rule}"}}, in place of {role!r}'
        if answers is None:
            mend = "no message is an answer: name the field with the answers in the sections"
        tokens = sample.roles.get(near or "", {}).get("tokens", 0) or sample.tokens
        yield Finding("role_not_in_data", says, 1, "roles", sample.count, tokens, mend)


def roles_not_in_mask(sample: Sample) -> Iterator[Finding]:
    """Roles of messages that `mask` does not name, except roles that most configs leave to `mask_default`."""
    view = sample.view
    if view.mask is None:
        return
    found: dict[str, Hits] = {}
    for chat in sample.conversations:
        for place, message in enumerate(chat.messages):
            role = message.get("role")
            if isinstance(role, str) and role not in view.mask and not is_usual(role, view):
                text = text_of(message)
                hits = found.setdefault(role, Hits(sample, "messages"))
                where = f"{chat.field}[{place}]: {text}"
                hits.add(chat.part, chat.line, where, len(text) * sample.tokens_per_character)
    known = [*OFTEN_MASKED, "assistant"]
    for role, hits in sorted(found.items(), key=lambda entry: -entry[1].tokens)[:8]:
        near = None if role in known else near_name(role, dict.fromkeys([*known, *view.mask]))
        done = "trained" if view.mask_default == "train" else "not trained"
        says = f"`mask` does not name the role {role!r}, of {hits.told}: {done}"
        says += f"; did you mean {near!r}?" if near else ""
        other = "mask" if view.mask_default == "train" else "train"
        yield from hits.finding("role_not_in_mask", says, f'"mask": {{"{role}": "{other}"}}')


def answers_not_trained(sample: Sample) -> Iterator[Finding]:
    """Other roles are trained, but no message of the assistant is."""
    counts = sample.roles.get("assistant")
    others = sum(said["trained"] for role, said in sample.roles.items() if role != "assistant")
    if counts is not None and counts["tokens"] and not counts["trained"] and others:
        told = ", ".join(repr(role) for role, said in sample.roles.items() if said["trained"])
        says = f"nothing that 'assistant' says is trained; trained: {told}"
        mend = '"mask": {"assistant": "train"}'
        messages = counts["messages"]
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
    bos = sample.tokenizer.bos_id
    hits = Hits(sample, "rows")
    if bos is None:
        return
    for part, _, rows, _, lines in sample.sequences():
        for row in np.flatnonzero(_first(rows, 0) == bos).tolist():
            if len(rows[row]) > 1 and rows[row][1] == bos:
                hits.add(part, int(lines[row]), _start_of(sample, rows, row))
    says = f"two BOS tokens are at the beginning of {hits.told}"
    if sample.template is not None:
        mend = '"preprocessing": {"bos": "strip"} or "tokenizer", or a template that writes it once'
    else:
        mend = 'take it out of the texts, or "add_special_tokens": false for the first section'
    yield from hits.finding("double_bos", says, mend)


def no_bos(sample: Sample) -> Iterator[Finding]:
    """Sequences without BOS, although the tokenizer adds BOS to every text."""
    bos = sample.tokenizer.bos_id
    given = sample.config
    if bos is None or given.input.tokenized or given.preprocessing.bos == "strip":
        return
    if sample.tokenizer.encode(["a"], add_special_tokens=True).flat[0] != bos:
        return  # models of such tokenizers are trained without BOS
    lists = {name for name, output in sample.outputs.items() if output.kind == "list"}
    hits = Hits(sample, "rows")
    for part, name, rows, _, lines in sample.sequences():
        if name not in lists:  # elements of lists follow a prompt
            for row in np.flatnonzero((_first(rows, -1) != bos) & (rows.lengths > 0)).tolist():
                hits.add(part, int(lines[row]), _start_of(sample, rows, row))
    says = f"the BOS token, which this tokenizer puts in front of every text, is missing in {hits.told}"
    if sample.template is not None:
        mend = '"preprocessing": {"bos": "tokenizer"}'
    else:
        mend = '"add_special_tokens": true for the first section'
    yield from hits.finding("no_bos", says, mend)


def no_end(sample: Sample) -> Iterator[Finding]:
    """Answers and texts after which no end token is trained. Roles that never end are found by `roles_without_end`."""
    if not _wants_ends(sample):
        return
    special = np.array(sorted(end_ids(sample.tokenizer)), np.int64)
    hits, seen = Hits(sample, "rows"), 0
    chats = lists = False
    for part, name, rows, mask, lines in sample.sequences():
        if not sample.outputs[name].trains:
            continue
        trained = np.ones(len(rows.flat), np.uint8) if mask is None else mask
        ends = np.isin(rows.flat, special) & (trained == 1)
        row_of = np.repeat(np.arange(len(rows)), rows.lengths)
        last = _last_trained(rows, trained)
        near = np.zeros(len(rows), bool)
        # A row is good if any run of trained tokens in it ends with a special token.
        stop = np.flatnonzero((trained == 1) & (np.append(trained[1:], 0) == 0) | (np.append(np.diff(row_of), 1) > 0))
        for back in range(NEAR):
            at = stop - back
            good = (at >= 0) & (row_of[np.maximum(at, 0)] == row_of[stop])
            near[row_of[stop[good]][ends[at[good]]]] = True
        chats |= sample.outputs[name].has_template
        lists |= sample.outputs[name].kind == "list"
        seen += int((last >= 0).sum())
        for row in np.flatnonzero((last >= 0) & ~near).tolist():
            hits.add(part, int(lines[row]), _end_of(sample, rows, row, int(last[row])))
    if hits.count <= _FEW * seen or any(roles_without_end(sample)):
        return
    says = f"no end token is trained in {hits.told} of {seen:,}: a model never learns to stop"
    if lists:
        mend = "end the texts of the lists with the EOS token's text: preprocessing.eos does not reach lists"
    elif chats:
        mend = 'a template that writes an end token after each answer: "input": {"chat_template": ...}'
    elif sample.tokenizer.id_of("eos_token") is None:
        mend = 'name an eos_token in the tokenizer, then "preprocessing": {"eos": "if_missing"}'
    else:
        mend = '"preprocessing": {"eos": "if_missing"}'
    yield from hits.finding("no_end", says, mend)


_RENDERED = 1 << 19  # most characters that are encoded again: a few records show all roles


def _wants_ends(sample: Sample) -> bool:
    options = sample.config.mask_options
    return not sample.config.input.tokenized and (options is None or options.eos != "mask")


def roles_without_end(sample: Sample) -> Iterator[Finding]:
    """Roles whose trained turns never end with an end token."""
    given, tokenizer = sample.config, sample.tokenizer
    rendered, characters = list[Rendered](), 0
    for part in sample.parts:
        if part.rendered is not None and characters < _RENDERED:
            rendered.append(part.rendered)
            characters += sum(len(text) for pieces in part.rendered.pieces.values() for text in pieces.texts)
    if sample.template is None or not rendered or not _wants_ends(sample):
        return
    policy = RoleMask(given.mask, given.mask_default, text_rules(given).mask_options)
    batches = (tokenize(each, tokenizer, tokenizer.bos_id) for each in rendered)
    for role, turn in endless_roles(batches, policy, end_ids(tokenizer), tokenizer.decode).items():
        tail = tokenizer.decode(turn.tail)
        counts = sample.roles.get(role, {})
        says = f"no end token is trained behind what {role!r} says, so a model does not learn to stop: its turns end "
        says += f"with {tail.strip()[-40:]!r}"
        mend = _mend_end(sample, turn, tail)
        messages, tokens = counts.get("messages", 1), counts.get("tokens", sample.tokens)
        yield Finding("no_end", says, messages, "messages", sample.count, tokens, mend)


def _mend_end(sample: Sample, turn: Endless, tail: str) -> str:
    eos = sample.tokenizer.special_tokens.get("eos_token")
    wanted = "its EOS token (name an eos_token in the tokenizer)" if eos is None else repr(eos)
    mend = f'"input": {{"chat_template": ...}} with a template that writes {wanted} behind each of its turns'
    mark = _MARK.search(tail)
    if sample.tokenizer.reference.encode_special_tokens:
        return (
            "split_special_tokens makes the tokenizer encode special tokens, such as the end of a turn, as plain text: "
            "set it to false in tokenizer_config.json"
        )
    if turn.followed and "endgeneration" in sample.template_source:
        return "move {% endgeneration %} of the chat template behind the end token"
    if mark is not None and mark[1] in sample.template_source:
        return f"{mark[1]!r} is plain text on this tokenizer: add it to the tokenizer as a special token; or {mend}"
    return mend


_MARK = re.compile(r"(<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\])\s*\Z")
"""Text that looks like an end token, at the end of a text."""


def double_end(sample: Sample) -> Iterator[Finding]:
    """The same special token twice in a row, except BOS at the beginning."""
    # Unknown tokens and pads may follow each other, as they end nothing.
    others = {sample.tokenizer.id_of(name) for name in ("unk_token", "pad_token")} - {
        sample.tokenizer.id_of("eos_token")
    }
    special = [token for token in _special_ids(sample).tolist() if token not in others]
    hits = Hits(sample, "places")
    for part, _, rows, _, lines in sample.sequences() if not sample.config.input.tokenized else ():
        flat = rows.flat
        same = np.flatnonzero((flat[1:] == flat[:-1]) & np.isin(flat[1:], special)) if len(flat) else flat
        row = np.searchsorted(rows.offsets, same, side="right") - 1
        inside = (same + 1 < rows.offsets[row + 1]) & (
            (same > rows.offsets[row]) | (flat[same] != sample.tokenizer.bos_id)
        )
        for place, at in zip(same[inside].tolist(), row[inside].tolist(), strict=True):
            hits.add(part, int(lines[at]), _end_of(sample, rows, at, place + 1 - int(rows.offsets[at])))
    says = f"the same special token follows itself at {hits.told}"
    mend = "take the token out of the texts, or out of the template"
    if sample.template is None and sample.config.preprocessing.eos != "never":
        ends = adds_eos(sample.tokenizer)
        mend = (
            '"preprocessing": {"eos": "never"}: this tokenizer adds its EOS by itself'
            if ends
            else '"preprocessing": {"eos": "if_missing"}, in place of "always"'
        )
    yield from hits.finding("double_end", says, mend)


# Cuts.


def cut_off(sample: Sample) -> Iterator[Finding]:
    """A large share of the tokens is cut off; or the run would fail at the first long row."""
    hits = Hits(sample, "rows")
    longest = sample.longest
    if longest is None:
        return
    for part, _, rows, _, lines in sample.sequences():
        for row in np.flatnonzero(rows.lengths > longest).tolist():
            text = f"{rows.lengths[row]:,} tokens, {rows.lengths[row] - longest:,} more than {sample.view.limit}"
            hits.add(part, int(lines[row]), text, float(rows.lengths[row] - longest))
    fails = sample.config.preprocessing.truncation_mode == "error" and hits.count > 0
    if sample.config.preprocessing.truncation_mode == "drop" or (
        not fails and hits.tokens <= CUT_SHARE * sample.tokens
    ):
        return  # dropped records are another finding
    share = hits.tokens / max(1, sample.tokens)
    what = "the run ends at the first of them" if fails else f"{share:.1%} of all tokens are cut off"
    says = f"{hits.told} with more tokens than {sample.view.limit} ({longest:,}): {what}"
    mend = f'"preprocessing": {{"{sample.view.limit}": {_enough(sample)}}}'
    if sample.view.packs:
        mend += ', or "truncation_mode": "chunk"'
    yield from hits.finding("cut_off", says, mend)


def answers_cut(sample: Sample) -> Iterator[Finding]:
    """Answers of which only a part is left: the cut is between two trained tokens."""
    longest, mode = sample.longest, sample.config.preprocessing.truncation_mode
    chats = {name for name, output in sample.outputs.items() if output.has_template or len(output.sections) > 1}
    if longest is None or mode == "drop":
        return
    hits = Hits(sample, "rows")
    for part, name, rows, mask, lines in sample.sequences():
        if mask is None or name not in chats:
            continue  # a text is no answer
        for row in np.flatnonzero(rows.lengths > longest).tolist():
            own = mask[rows.offsets[row] : rows.offsets[row + 1]]
            border = len(own) - longest if mode == "keep_end" else longest
            if own[border - 1] and own[border]:
                lost = own[:border] if mode == "keep_end" else own[border:]
                run = int(np.argmin(np.append(lost[::-1] if mode == "keep_end" else lost, 0)))
                left = "end" if mode == "keep_end" else "beginning"
                hits.add(part, int(lines[row]), f"of an answer only the {left} is left, {run:,} tokens are cut", run)
    rows_in_all = sum(len(part.masked) for part in sample.parts)
    says = f"{sample.view.limit}, {longest:,}, cuts through an answer, which is trained in part, in {hits.told}"
    mend = f'"preprocessing": {{"{sample.view.limit}": {_enough(sample)}}}, or "truncation_mode": "drop"'
    if hits.count > _FEW * rows_in_all:
        yield from hits.finding("answers_cut", says, mend)


def _enough(sample: Sample) -> int:
    """The smallest power of two, above the current length, that cuts off at most a share of `_FEW` of the tokens."""
    sizes = np.concatenate([rows.lengths for _, _, rows, _, _ in sample.sequences()])
    enough = 1 << (sample.longest or 1).bit_length()
    while np.maximum(sizes - enough, 0).sum() > _FEW * sizes.sum():
        enough *= 2
    return enough


def prompt_not_prefix(sample: Sample) -> Iterator[Finding]:
    """Rows with a token that holds text of both prompt and answer."""
    hits = Hits(sample, "rows")
    for part in sample.parts:
        counts = part.masked.counters.get("prompt_not_prefix")
        for row in np.flatnonzero(counts).tolist() if counts is not None else ():
            hits.add(part, int(part.masked.line[row]), "", 1)
    says = f"a token reaches over the border of prompt and answer, and is not trained, in {hits.told}"
    mend = "put the space that is between them at the beginning of the answer, not at the end of the prompt"
    if hits.count > _FEW * sum(len(part.masked) for part in sample.parts):
        yield from hits.finding("prompt_not_prefix", says, mend)


_COMPARED = 400
"""Rows that are decoded: it is slow, and a template does the same with all."""


def answers_in_part(sample: Sample) -> Iterator[Finding]:
    """Answers that the rendering holds, and of which not all is trained: `{% generation %}` around a part of them."""
    if sample.template is None or sample.config.mask_options is not None:
        return
    hits, compared = Hits(sample, "messages"), 0
    trained = _trained_texts(sample)
    for chat in sample.conversations:
        if (found := trained(chat)) is None:
            continue
        text, whole = found
        for place, message in enumerate(chat.messages):
            said = _plain(text_of(message))
            if not said or not _is_trained(sample, chat, message) or said not in whole:
                continue
            compared += 1
            if said not in text:
                said_size = len(text_of(message)) * sample.tokens_per_character
                hits.add(chat.part, chat.line, f"{chat.field}[{place}]: {text_of(message)}", said_size)
        if compared > _COMPARED:
            break
    says = f"not all words are trained in {hits.told} of the assistant, of {compared:,} that were compared"
    mend = "{% generation %} in the chat template must hold all that the assistant says, and its end token"
    if hits.count > _FEW * compared:
        yield from hits.finding("answers_in_part", says, mend)


def _is_trained(sample: Sample, chat: Conversation, message: object) -> bool:
    """True if the config trains all text of this message, and it is the assistant's."""
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(message, dict) or message.get("train") is False or message.get("weight") == 0:
        return False
    if chat.actions != {"$role"} or role != "assistant":
        return False
    return sample.config.mask.get(role, sample.config.mask_default) == "train"


def _trained_texts(sample: Sample) -> Callable[[Conversation], tuple[str, str] | None]:
    """conversation -> (trained text, entire text), decoded, without white space; None if it became no row."""
    rows = {part.number: (ids, mask) for part, _, ids, mask, _ in sample.sequences() if mask is not None}

    def of(chat: Conversation) -> tuple[str, str] | None:
        found = sample.rows_of(chat.part, chat.line)
        if found.start == found.stop or chat.part.number not in rows:
            return None
        ids, mask = rows[chat.part.number]
        own = slice(int(ids.offsets[found.start]), int(ids.offsets[found.stop]))
        flat, kept = ids.flat[own], mask[own] == 1
        runs = np.split(flat[kept], np.flatnonzero(np.diff(np.flatnonzero(kept)) > 1) + 1)
        decode = sample.tokenizer.decode
        # A NUL between runs of trained text, so no answer is found across untrained text.
        return "\0".join(_plain(decode(run.tolist())) for run in runs), _plain(decode(flat.tolist()))

    return of


def _plain(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


_UNKNOWN = 0.001
"""A larger share of unknown tokens is a finding: a tokenizer for the language has none."""


def unknown_tokens(sample: Sample) -> Iterator[Finding]:
    """Characters that the tokenizer encodes as the unknown token."""
    unknown = sample.tokenizer.id_of("unk_token")
    if unknown is None or sample.config.input.tokenized or unknown == sample.tokenizer.id_of("eos_token"):
        return
    hits = Hits(sample, "tokens")
    total = 0
    for part, _, rows, _, lines in sample.sequences():
        total += len(rows.flat)
        each = rows.sums(rows.flat == unknown)
        for row in np.flatnonzero(each).tolist():
            hits.add(part, int(lines[row]), "", float(each[row]))
    if hits.tokens > _UNKNOWN * total:
        says = (
            f"{hits.tokens:,.0f} tokens are unknown ({hits.tokens / total:.1%}): the tokenizer lacks these characters"
        )
        yield from hits.finding("unknown_tokens", says, "--tokenizer_path of a tokenizer for these languages")


def adds_eos(tokenizer: Tokenizer) -> bool:
    """True if a tokenizer puts its EOS token behind every text by itself."""
    ids = tokenizer.encode(["a"], add_special_tokens=True).flat
    return bool(len(ids) and ids[-1] == tokenizer.id_of("eos_token"))


def _special_ids(sample: Sample) -> Array:
    named = [sample.tokenizer.id_of("eos_token")]
    return np.array(sorted(sample.tokenizer.special_ids | {i for i in named if i is not None}), np.int64)


def _first(rows: Ragged, default: int) -> Array:
    """int64 [rows]: the first token of each row; `default - 1` for empty rows."""
    first = np.full(len(rows), default - 1, np.int64)
    filled = rows.lengths > 0
    first[filled] = rows.flat[rows.offsets[:-1][filled]]
    return first


def _last_trained(rows: Ragged, trained: Array) -> Array:
    """int64 [rows]: the position of the last trained token in each row; -1 without trained tokens."""
    last = np.full(len(rows), -1, np.int64)
    places = np.flatnonzero(trained)
    row = np.searchsorted(rows.offsets, places, side="right") - 1
    last[row] = places - rows.offsets[row]
    return last


def _start_of(sample: Sample, rows: Ragged, row: int) -> str:
    return f"it begins: {sample.tokenizer.decode(np.asarray(rows[row])[:24].tolist())}"


def _end_of(sample: Sample, rows: Ragged, row: int, place: int) -> str:
    ids = np.asarray(rows[row])[max(0, place - 20) : place + 1].tolist()
    return f"it ends: {sample.tokenizer.decode(ids)}"
