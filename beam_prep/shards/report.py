"""The report of a run or a preview: which roles are trained, what is cut, and why a run fails."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from beam_prep.data.block import ADVICE, at_offset
from beam_prep.errors import ConfigError
from beam_prep.hints import counted, listed, nearest
from beam_prep.reading.adapters import ROLES, fields_read
from beam_prep.reading.records import LOST
from beam_prep.reading.rollouts import RolloutFields
from beam_prep.reading.sources import place_at, source_of
from beam_prep.shards.pack import longest_row
from beam_prep.shards.plan import Dropped, Plan
from beam_prep.tokens.batch import CUT_TOKENS, IN_FULL

MAX_REJECT_RATE, MAX_NO_LOSS_RATE = 0.01, 0.05


def check_rates(max_reject_rate: float, max_no_loss_rate: float) -> None:
    """Raises ConfigError if a rate is not a share between 0 and 1."""
    for name, share in (("max_reject_rate", max_reject_rate), ("max_no_loss_rate", max_no_loss_rate)):
        if not 0 <= share <= 1:
            raise ConfigError(f"{name} is {share}, wanted a share between 0 and 1")


CUT_SHARE = 0.05
"""The report warns if more than this share of tokens is cut off."""

OFTEN_MASKED = ("system", "developer", "user", "tool", "function")
_KEEPS_TEXT = "input.not_text: 'drop_parts' keeps their text"
_ROLES = 8  # most roles that are listed
_FIELDS = 12
_MESSAGE = 300  # characters of a reject's message

RoleTable = Mapping[str, Mapping[str, int]]
"""role -> {"messages": n, "tokens": n, "trained": n}, as in the manifest."""


@dataclass(frozen=True, slots=True)
class ConfigView:
    """The part of a config that the report depends on.

    Attributes:
        fields: the fields of a record that are read.
        mask: role -> rule; None: no section has the action `$role`.
        mask_default: the rule of other roles.
        longest: rows with more tokens are cut; None: not known.
        limit: the field of `preprocessing` that sets `longest`.
        packs: True if rows can be packed instead of cut.
        groups: (fields, numbers of its files in the input) of each group of inputs.
    """

    fields: tuple[str, ...] = ()
    mask: Mapping[str, str] | None = None
    mask_default: str = "mask"
    longest: int | None = None
    limit: str = "max_seq_len"
    packs: bool = False
    groups: tuple[tuple[tuple[str, ...], range], ...] = ()

    @classmethod
    def of(cls, config: Mapping[str, Any] | None, group_files: Sequence[int] = ()) -> "ConfigView":
        """From the config in a manifest; None: no config is known. `group_files`: how many files each group has."""
        if config is None:
            return cls()
        given, step = config["input"], config["preprocessing"]
        parts = given.get("groups") or [given]
        by_role = any(section["action"] == "$role" for part in parts for section in _sections(part))
        fields = [_fields(part) for part in parts]
        files = itertools.starmap(range, itertools.pairwise(itertools.accumulate(group_files, initial=0)))
        limit = "max_packed_len" if (longest_row(step) or step["max_seq_len"]) < step["max_seq_len"] else "max_seq_len"
        return cls(
            tuple(dict.fromkeys(name for each in fields for name in each)),
            config["mask"] if by_role else None,
            config["mask_default"],
            step[limit],
            limit,
            not parts[0].get("sources") and not parts[0].get("rollouts") and step["padding"] == "none",
            tuple(zip(fields, files, strict=False)) if given.get("groups") else (),
        )

    def asked(self, file: int) -> tuple[str, ...]:
        """The fields that are read from records of a file; `file`: its number in the input."""
        return next((fields for fields, files in self.groups if file in files), self.fields)


def _sections(given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The sections of an input, or of a group of it."""
    sources = given.get("sources") or {"": {"sections": given.get("sections") or ()}}
    return [section for source in sources.values() for section in source["sections"]]


def _fields(given: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that are read."""
    if given.get("adapter"):
        return fields_read(**given["adapter"])
    if given.get("rollouts"):
        return tuple(dict.fromkeys(RolloutFields.of(given["rollouts"]).columns.values()))
    return tuple(dict.fromkeys(section["field"] for section in _sections(given)))


def failure(plan: Plan, config: ConfigView, max_reject_rate: float, max_no_loss_rate: float) -> str | None:
    """The reason why a run fails with this plan, or None."""
    ledger = plan.ledger
    if ledger.reject_rate > max_reject_rate:
        rejected = sum(ledger.rejected.values())
        problem = (
            f"{rejected} of {ledger.read} records were rejected ({ledger.reject_rate:.2%}; "
            f"{listed(ledger.rejected)}), more than --max_reject_rate {max_reject_rate}"
        )
        return _with_causes(problem, plan, config)
    if ledger.lines == ledger.blank:
        files = ", ".join(repr(entry["path"]) for entry in plan.inputs[:3]) or "the collection is empty"
        only = f", only {counted(ledger.blank, 'blank line')}" if ledger.blank else ""
        return f"the input has no record{only}: {files}"
    if ledger.kept == 0:
        left_out = {**ledger.dropped, **ledger.rejected}
        most = max(left_out, key=left_out.__getitem__)
        advice = ADVICE.get(most, "check the field names in the config against the input")
        is_there = not any(_missing(drop, config) for drop in plan.shown_as("dropped") if drop.found.reason == most)
        if most == "rows_without_loss" and is_there:
            advice = "no token of any record is trained: check `mask` and the actions in the config"
        return _with_causes(f"nothing is kept of {ledger.read} records ({listed(left_out)}): {advice}", plan, config)
    lost = {reason: ledger.dropped[reason] for reason in LOST if ledger.dropped.get(reason)}
    count = sum(lost.values())
    if count > max_no_loss_rate * ledger.read:
        problem = (
            f"{count} of {ledger.read} records were dropped with nothing to train on ({count / ledger.read:.2%}; "
            f"{listed(lost)}), more than --max_no_loss_rate {max_no_loss_rate}"
        )
        return _with_causes(problem, plan, config)
    return _of_empty_group(plan, config) or plan.problem


def _of_empty_group(plan: Plan, config: ConfigView) -> str | None:
    """The problem if a group of inputs has records and none is kept. The rates of the whole run do not show it if other
    groups are much larger."""
    for number, (_, files) in enumerate(config.groups):
        read, kept = plan.of_files[files.start : files.stop].sum(axis=0)
        if read and not kept:
            problem = f"nothing is kept of input.groups[{number}], of {read} records: check its fields, or leave it out"
            mine = tuple(each for each in plan.shown if each.file in files)
            return _with_causes(problem, dataclasses.replace(plan, shown=mine, roles={}), config)
    return None


def nothing_trained(plan: Plan, config: ConfigView) -> str:
    """The problem of a run whose kept rows have no trained token."""
    problem = "nothing is trained on: no token of any record has a mask of 1; check `mask` in the config"
    if cut := plan.counters.get(CUT_TOKENS):
        problem += f", or raise preprocessing.{config.limit}: {cut:,} tokens were cut off"
    return _with_causes(problem, plan, config)


def _with_causes(problem: str, plan: Plan, config: ConfigView) -> str:
    """The problem with its probable causes, in one line: runners pass on only the first line."""
    causes = list(lost_causes(plan.shown_as("dropped"), config))
    if rejects := plan.shown_as("rejected"):  # the most frequent reason is why the run fails
        causes.append(_said(max(rejects, key=lambda reject: plan.ledger.rejected[reject.found.reason])))
    if plan.roles:
        causes += role_warnings(plan.roles, config)
    return "; ".join([problem, *causes])


def _said(reject: Dropped) -> str:
    kind, file, found = source_of(reject.path), reject.path, reject.found
    if reject.line and not kind.by_row:
        file = f"{file}, {kind.place(reject.line)}"
    message = " ".join(found.note.split())[:_MESSAGE]
    where = at_offset(file, reject.offset, kind.by_row)
    return f"the first reject of '{found.reason}' is {where}{f': {message}' if message else ''}"


def lost_causes(drops: Sequence[Dropped], config: ConfigView) -> Iterable[str]:
    """For each reason, compares the fields of the first dropped record with the fields that the config asks for.

    Args:
        drops: the first drops.
        config: the fields and masks of the config.
    """
    for reason in LOST:
        found = next((each for each in drops if each.found.reason == reason and each.found.fields is not None), None)
        if found is None:
            continue
        path, offset, record = found.path, found.offset, found.found
        missing, asked = _missing(found, config), config.asked(found.file)
        bare = [name for name in asked if name in (record.bare or ())]
        fields = record.fields or []
        text = f"the first record of {reason!r} is {place_at(path, offset)}, with the fields {_names(fields)}"
        if asked:
            text += f"; the config asks for {_names(asked)}"
        others = [other for other in fields if other not in asked]
        near = {name: nearest(name, others) for name in missing}
        if missing:
            text += f": {_names(missing)} {'is' if len(missing) == 1 else 'are'} not there"
            text += "".join(f", did you mean {other!r}?" for other in near.values() if other)
        elif bare:
            text += f": {_names(bare)} {'holds' if len(bare) == 1 else 'hold'} nothing"
        elif reason == "rows_without_loss":
            text += ": untrained by `mask`, by an action, by `train` or `weight` of its messages, or by a cut"
        yield text


def _missing(drop: Dropped, config: ConfigView) -> list[str]:
    fields = drop.found.fields
    return [] if fields is None else [name for name in config.asked(drop.file) if name not in fields]


def _names(names: Sequence[str]) -> str:
    return ", ".join(_first(list(map(repr, names)), _FIELDS, "fields")) or "(none)"


def _first(texts: Sequence[str], most: int, what: str) -> list[str]:
    """The first texts, and how many more there are."""
    more = len(texts) - most
    return [*texts[:most], *([f"{more:,} more {what}"] if more > 0 else [])]


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, or None.

    >>> near_name("gpt", ["user", "assistant"]), near_name("asistant", ["user", "assistant"]), near_name("x", ["user"])
    ('assistant', 'assistant', None)
    >>> near_name("tool-response", ["user", "tool"]), near_name("tool_call", ["tool", "assistant"])
    ('tool', 'assistant')
    """
    by_lower = {other.lower(): other for other in known}
    usual = ROLES.get(name.lower().replace("-", "_"), "")
    return by_lower.get(usual) or nearest(name, known)


def role_warnings(roles: RoleTable, config: ConfigView) -> list[str]:
    """Warns of roles in `mask` that no message has, and of roles of messages that `mask` does not name."""
    if config.mask is None:
        return []
    listed = [f"{role!r} ({counted(counts['messages'], 'message')})" for role, counts in _by_messages(roles)]
    found = ", ".join(_first(listed, _ROLES, "roles")) or "none"
    warnings = []
    for role, rule in config.mask.items():
        if role not in roles:
            near = near_name(role, [other for other in roles if other not in config.mask])
            hint = f": did you mean {near!r}?" if near else ""
            warnings.append(f"`mask` names the role {role!r} ({rule}), which no message has{hint}; found: {found}")
    strange = []
    for role, counts in _by_messages(roles):
        if role in config.mask or is_usual(role, config):
            continue
        near = near_role(role, config)
        hint = f"; did you mean {near!r}?" if near else ""
        strange.append(
            f"{counted(counts['messages'], 'message')} with the role {role!r}, which `mask` does not name: "
            f"mask_default is {config.mask_default!r}, {counts['trained']:,} tokens of {role!r} are trained{hint}"
        )
    return warnings + _first(strange, _ROLES, "roles that `mask` does not name")


def near_role(role: str, config: ConfigView) -> str | None:
    """The usual role, or role in `mask`, that was probably meant by a role that `mask` does not name; or None."""
    known = [*OFTEN_MASKED, "assistant"]
    return None if role in known else near_name(role, dict.fromkeys([*known, *(config.mask or ())]))


def is_usual(role: str, config: ConfigView) -> bool:
    """True if most configs leave this role to `mask_default`."""
    return role in OFTEN_MASKED if config.mask_default == "mask" else role == "assistant"


def _by_messages(roles: RoleTable) -> list[tuple[str, Mapping[str, int]]]:
    return sorted(roles.items(), key=lambda entry: (-entry[1]["messages"], entry[0]))


Found = Mapping[str, Any]
"""The entries of a manifest that a report shows: `roles`, `counters`, `totals`, `ledger`, `splits`."""


def _share_cut(found: Found) -> float:
    """The share of all tokens that was cut off."""
    cut, kept = found["counters"].get(CUT_TOKENS, 0), sum(found["totals"]["tokens"].values())  # with what packing cuts
    return cut / (kept + cut) if cut else 0.0


def warnings(found: Found, config: ConfigView, bad_answers: Mapping[str, int] = MappingProxyType({})) -> list[str]:
    """The warnings of a run, one sentence each.

    Args:
        found: the counts, of a run or of a preview.
        config: what the report depends on.
        bad_answers: field -> records whose answers this field marks as bad.
    """
    counters, ledger = found["counters"], found["ledger"]
    texts = [*role_warnings(found.get("roles", {}), config), *_template_warnings(counters)]
    if (share := _share_cut(found)) > CUT_SHARE:
        now = "" if config.longest is None else f" (now {config.longest:,})"
        advice = f"raise preprocessing.{config.limit}{now}"
        if config.packs:
            advice += ", or cut longer records into several rows: truncation_mode 'chunk'"
        texts.append(f"{counters[CUT_TOKENS]:,} tokens were cut off, {share:.1%} of all: {advice}")
    if not_text := ledger["rejected"].get("not_text"):
        count = counted(not_text, "record")
        texts.append(f"rejected (not_text): {count} with images, audio or video; {_KEEPS_TEXT}")
    if bad_answers:
        told = "; ".join(f"{counted(count, 'record')} by {name!r}" for name, count in bad_answers.items())
        texts.append(
            f"answers marked as bad were trained like the others: of {told}. Leave these records out; or keep the "
            "field for a trainer that reads it (output.keep_fields)"
        )
    for name in (name for name, totals in found.get("splits", {}).items() if not totals["rows"]):
        texts.append(
            f"split {name!r} has no records: none of the {ledger['kept']:,} that are kept falls into it; give it a "
            "larger share in output.splits, or choose another split_seed"
        )
    return texts


NOT_WRITTEN = {
    "tools_not_written": (
        "conversation",
        "the chat template does not write the tools of {}",
        '"input": {"chat_template": ...} that writes `tools` (configs/tools.jinja does), "template": "conversation"',
    ),
    "texts_not_written": (
        "message",
        "the chat template does not write a content or a call of {}",
        '"input": {"chat_template": ...} that writes them, or "not_rendered": "reject"',
    ),
    "reasoning_not_written": (
        "message",
        "the chat template does not write the reasoning of {}",
        '"input": {"chat_template": ...} that writes `reasoning_content`',
    ),
    "last_reasoning_not_written": (
        "last answer",
        "the chat template does not write the reasoning of {}",
        '"input": {"chat_template": ...} that writes `reasoning_content` of answers that nothing follows',
    ),
}
"""Counter -> (what is counted, sentence, what to do). Each side of a pair, and each sampled response, counts as one
conversation."""
_MARKS = {
    "marks_without_end": "in {} the template's {{% generation %}} marks leave out the token that ends a turn, which a "
    "model must learn to write: move {{% endgeneration %}} behind it",
    "marks_with_header": "in {} the template's {{% generation %}} marks include the generation prompt: move "
    "{{% generation %}} behind it",
}


def not_written(counters: Mapping[str, int]) -> list[str]:
    """The keys of `NOT_WRITTEN` that are a problem. That reasoning is left out of the history is none.

    If the template writes no reasoning at all, `reasoning_not_written` counts that of last answers, too.
    """
    is_written = bool(counters.get("reasoning_written"))
    left_out = "reasoning_not_written" if is_written else "last_reasoning_not_written"
    return [name for name in NOT_WRITTEN if counters.get(name) and name != left_out]


def _template_warnings(counters: Mapping[str, int]) -> Iterable[str]:
    """Warns of text that the chat template leaves out, and of misplaced {% generation %} marks."""
    for name in not_written(counters):
        noun, says, mend = NOT_WRITTEN[name]
        yield f"{says.format(counted(counters[name], noun))}: {mend}"
    yield from (text.format(counted(counters[name], "turn")) for name, text in _MARKS.items() if counters.get(name))


def lines(found: Found, config: ConfigView) -> list[str]:
    """A line for each role with its trained tokens, then lines for other counts, such as tokens that were cut."""
    # Of the roles alone: columns have each message as often as a mix writes it, and prompts with completions no mask.
    roles = found.get("roles", {})
    texts, trained = [], sum(counts["trained"] for counts in roles.values())
    for role, counts in _by_messages(roles):
        text = f"{role!r}: {counted(counts['messages'], 'message')}"
        if counts["trained"]:
            of_all = f" of {counts['tokens']:,}" if counts["tokens"] else ""
            share = counts["trained"] / trained
            text += f", {counts['trained']:,}{of_all} tokens trained ({share:.1%} of what is trained in messages)"
        elif counts["tokens"]:
            text += f", {counts['tokens']:,} tokens, none trained"
        if config.mask is not None and role not in config.mask:
            text += f"; not in `mask`, mask_default is {config.mask_default!r}"
        texts.append(text)
    texts, counters = _first(texts, _ROLES, "roles"), found["counters"]
    for name, noun in (("tool_arguments_changed", "arguments"), ("tool_ids_changed", "ids")):
        if changed := counters.get(name):
            texts.append(f"{noun} of {changed:,} calls were given to the chat template in the form that it takes")
    less = counters.get("reasoning_not_written", 0) - counters.get("last_reasoning_not_written", 0)
    if less and counters.get("reasoning_written"):
        told = counted(less, "message")
        texts.append(f'the history lacks the reasoning of {told}: "turns": "auto" in "input" gives it back')
    if dropped := counters.get("rows_dropped"):
        texts.append(f"rows of kept records that are left out: {dropped:,}, too long, or without a trained token")
    if share := _share_cut(found):
        texts.append(f"cut off: {counters[CUT_TOKENS]:,} tokens, {share:.1%} of all")
    return texts


_WAYS = (
    *("encoded_by_gigatoken", "encoded_by_transformers", "compared_with_transformers", "blocks_encoded_again"),
    *("conversations_compared", "conversations_different", "blocks_rendered_plainly", IN_FULL),
    *("blocks_reused", "blocks_replaced", "blocks_damaged"),
)
"""Entries of a `run.json`, which docs/formats.md explains."""


def how_made(run: Mapping[str, Any]) -> str:
    """How many records each backend and renderer made, from a `run.json`. It shows the use of a slower path."""
    ways = [f"{name.replace('_', ' ')}: {run[name]:,}" for name in _WAYS if run.get(name)]
    return f"records {', '.join(ways) or 'that were tokenised already'}"
