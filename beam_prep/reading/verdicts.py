"""Fields of records that say whether an answer is good: what they mean, and which records they mark as bad."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from beam_prep.data.block import step
from beam_prep.reading.records import Records


@dataclass(frozen=True, slots=True)
class FieldUse:
    """What a config does with the fields of a record.

    Attributes:
        kept: fields that are beside the tokens or decide over them -> how, as a sentence without its subject.
        read: fields that are read as texts, messages or ids.
        trained: those of them with what is trained.
        answers: rows are answers to something, and no documents or rollouts.
        pairs: each record is a better and a worse answer.
    """

    kept: Mapping[str, str]
    read: frozenset[str]
    trained: frozenset[str]
    answers: bool
    pairs: bool

    @property
    def known(self) -> frozenset[str]:
        """The fields that are read or kept."""
        return self.read | frozenset(self.kept)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A field that judges answers.

    Attributes:
        name: the field; `meta.label` of an object in it, `messages[].label` of its messages.
        means: what it says, and the values that were found.
        does: what the config does with it.
        bad: the places of the records that it marks as bad and that are trained like the others.
        which: the values of these.
        mend: what to do about them; "" where there are none.
    """

    name: str
    means: str
    does: str
    bad: tuple[int, ...] = ()
    which: str = ""
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.name!r} {self.means}; the config {self.does}"


def verdicts(records: Sequence[Mapping[str, Any]], use: FieldUse) -> list[Verdict]:
    """The fields that judge answers, and what a config does with them.

    >>> records = [{"prompt": "1 + 1?", "completion": "2", "label": True}] * 2
    >>> records += [{"prompt": "1 + 1?", "completion": "3", "label": False}]
    >>> (found,) = verdicts(records, FieldUse({}, frozenset(), frozenset({"completion"}), True, False))
    >>> str(found)
    "'label' marks answers as good or bad (true 2, false 1); the config does not read it, and trains all alike"
    >>> found.bad, found.which
    ((2,), 'false')
    """
    if not use.answers:
        return []
    fields: dict[_Field, list[tuple[int, Any]]] = {}
    for place, record in enumerate(records):
        for field, value in _fields(record, use):
            if value is not None:
                fields.setdefault(field, []).append((place, value))
    found: list[Verdict] = []
    for field, values in fields.items():
        looks = _looks_of(field)
        if use.pairs and looks[0] not in (_weights, _splits):
            continue
        if field.name in use.read and field.top not in use.kept and looks[0] is not _worse:
            continue  # a classifier's answer is its label
        found += next(filter(None, (list(look(field, values, use)) for look in looks)), [])
    return found


class _Field(NamedTuple):
    """A field of records, of objects in them (`meta.label`), or of messages (`messages[].label`).

    Attributes:
        top: the field of the record.
        name: as it is shown; `top`, if it is that.
        keys: its own name, and that of the object that holds it.
    """

    top: str
    name: str
    keys: tuple[str, ...]


def _fields(record: Mapping[str, Any], use: FieldUse) -> Iterator[tuple[_Field, Any]]:
    for top, value in record.items():
        kind = type(value)
        if kind is dict:
            for key, each in value.items():
                yield _Field(top, f"{top}.{key}", (key, top)), each
        elif kind is list and top in use.read:
            for message in value:
                if type(message) is dict and not _OF_MESSAGES.issuperset(message):
                    for key, each in message.items():
                        if key not in _OF_MESSAGES:
                            yield _Field(top, f"{top}[].{key}", (key,)), each
        else:
            yield _Field(top, top, (top,)), value


_OF_MESSAGES = frozenset(
    (
        *("role", "content", "weight", "train", "from", "value", "name"),
        *("tool_calls", "tool_call_id", "function_call", "reasoning_content", "reasoning", "thinking"),
    )
)
"""Keys of messages that are read."""


def _looks_of(field: _Field) -> list["_Look"]:
    """What looks at a field, by its name; of an object in a field, then by the name of that."""
    found = []
    for name in field.keys:
        words = [word for word in _WORD.findall(name.replace("-", "_")) if word.lower() not in _WHOSE]
        found += [_LOOK[each] for each in (name.lower(), "_".join(words).lower()) if each in _LOOK]
    return found or [_words]


_WORD = re.compile(r"[A-Z]*[^A-Z_\W]+|[A-Z]+")
_WHOSE = {
    *("is", "was", "has", "human", "user", "model", "llm", "judge", "gpt", "annotator", "expert", "reviewer", "final"),
    *("overall", "answer", "response", "completion", "output", "assistant"),
}
"""Words of a name that say who judges, and what."""

_Values = Sequence[tuple[int, Any]]

_UNREAD = "does not read it, and trains all alike"
_OUT = "leave these records out before the run"
_CERTAIN = {
    *("incorrect", "rejected", "reject", "undesirable", "failed", "refused", "thumbs_down", "thumbs down"),
    *("disliked", "downvoted", "disapproved", "unacceptable", "inaccurate"),
}
"""Words that say of an answer that it is bad, whatever the field is called."""
_GOOD_WORDS = {
    *("true", "yes", "good", "correct", "right", "accepted", "accept", "chosen", "desirable", "pass", "passed", "1"),
    *("thumbs_up", "thumbs up", "up", "like", "liked", "approved", "upvoted", "acceptable", "accurate"),
}
_BAD_WORDS = _CERTAIN | {"false", "no", "bad", "wrong", "fail", "down", "dislike", "unsafe", "0"}
_EVALUATION = {"test", "testing", "validation", "valid", "val", "eval", "evaluation", "dev", "heldout", "holdout"}
_FEW, _SHORT = 8, 24


def _good(value: Any) -> bool | None:
    """Whether a value says that an answer is good; None: it says nothing of that kind."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return None if value not in (-1, 0, 1) else value > 0
    if isinstance(value, str):
        word = value.strip().lower()
        return True if word in _GOOD_WORDS else False if word in _BAD_WORDS else None
    if isinstance(value, list) and value and all(isinstance(each, bool) for each in value):
        return all(value)  # of steps, or of several answers
    return None


def _words(field: _Field, values: _Values, use: FieldUse) -> Iterator[Verdict]:
    if not all(isinstance(value, str) and len(value) <= _SHORT for _, value in values):
        return
    bad = [each for each in values if each[1].strip().lower() in _CERTAIN]
    if bad and len({value for _, value in values}) <= _FEW:
        yield _verdict(field, f"marks answers as good or bad ({_counts(values)})", bad, use)


def _marks(good: bool) -> "_Look":
    def look(field: _Field, values: _Values, use: FieldUse) -> Iterator[Verdict]:
        said = [_good(value) for _, value in values]
        if not said or None in said:  # numbers of classes, names of topics
            yield from _words(field, values, use)
            return
        bad = [each for each, says in zip(values, said, strict=True) if says is not good]
        yield _verdict(field, f"marks answers as good or bad ({_counts(values)})", bad, use)

    return look


def _ratings(field: _Field, values: _Values, use: FieldUse) -> Iterator[Verdict]:
    numbers = [
        (place, value) for place, value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if all(isinstance(value, str) and _GRADE.fullmatch(value) for _, value in values):
        bad = [each for each in values if each[1][0] in "EFef"]
        yield _verdict(field, f"rates answers ({_counts(values)})", bad, use)
        return
    if not numbers or len(numbers) < len(values):
        yield from _marks(True)(field, values, use)  # `feedback` may be a word
        return
    low, high = (choose(value for _, value in numbers) for choose in (min, max))
    # Of a scale that nobody names, what is certainly bad: nothing, less, or a quarter of the best. Where all is
    # negative it is the logarithm of a probability, which is no rating.
    bad = [each for each in numbers if high > 0 and (each[1] <= 0 or each[1] <= high / 4)]
    shown = f"{low:g} to {high:g}" if low < high else f"{low:g}"
    yield _verdict(field, f"rates answers ({shown}, in {_records(numbers)})", bad, use)


_GRADE = re.compile("[A-Fa-f][+-]?")


def _weights(field: _Field, values: _Values, use: FieldUse) -> Iterator[Verdict]:
    bad = [(place, value) for place, value in values if isinstance(value, int | float) and value == 0]
    if bad:
        yield _verdict(field, f"is 0 in {len(bad):,} of {len(values):,} records: do not train these", bad, use)


def _splits(field: _Field, values: _Values, use: FieldUse) -> Iterator[Verdict]:
    bad = [each for each in values if isinstance(each[1], str) and each[1].strip().lower() in _EVALUATION]
    if bad:
        yield _verdict(field, f"names parts of a data set, also those for evaluation ({_counts(values)})", bad, use)


def _worse(field: _Field, values: _Values, use: FieldUse) -> Iterator[Verdict]:
    if all(_good(value) is not None for _, value in values):
        yield from _marks(False)(field, values, use)
        return
    texts = [each for each in values if isinstance(each[1], str | list) and each[1]]
    if texts:
        does = "trains it" if field.name in use.trained else "does not read it"
        bad = texts if field.name in use.trained else []
        means = f"holds answers that were rejected (in {_records(texts)})"
        yield _verdict(field, means, bad, use, does, "all of it")


_Look = Callable[[_Field, _Values, FieldUse], Iterator[Verdict]]


def _verdict(
    field: _Field, means: str, bad: _Values, use: FieldUse, does: str | None = None, which: str | None = None
) -> Verdict:
    if field.top in use.kept:
        return Verdict(field.name, means, use.kept[field.top])
    if not bad:
        return Verdict(field.name, means, does or _UNREAD)
    values = list(dict.fromkeys(_shown(value) for _, value in bad))
    shown = ", ".join(values[:3]) + (" ..." if len(values) > 3 else "")
    places = tuple(dict.fromkeys(place for place, _ in bad))  # several messages of a record
    return Verdict(field.name, means, does or _UNREAD, places, which or shown, _mend(field, bad))


def _mend(field: _Field, bad: _Values) -> str:
    key, look = json.dumps(field.name, ensure_ascii=False), _looks_of(field)[0]
    if field.name.startswith(f"{field.top}[]"):
        return f'{_OUT}; or "weight": 0 in these messages, which are not trained then'
    if field.name != field.top:
        return _OUT
    if look is _weights and field.name == "weight":
        return f'{_OUT}; or "output": {{"loss_weights": true}}, which gives their tokens no weight'
    if look is _splits:
        return f'{_OUT}; or "output": {{"domain_key": {key}}}, which gives each part a folder'
    if look is _worse and not isinstance(bad[0][1], bool | int):
        return "train 'chosen'; or both as a pair, by input.sources 'chosen' and 'rejected'"
    kinds = {type(value) for _, value in bad}
    if list in kinds:
        return _OUT
    kind = "bool" if kinds == {bool} else "float32" if kinds <= {bool, int, float} else "string"
    return f'{_OUT}; or "output": {{"keep_fields": {{{key}: "{kind}"}}}} for a trainer that reads the field (as KTO)'


def _records(values: _Values) -> str:
    count = len({place for place, _ in values})
    return f"{count:,} record{'' if count == 1 else 's'}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 24 else f"{text[:24]} ..."


def _counts(values: _Values) -> str:
    counts = Counter(_shown(value) for _, value in values).most_common(4)
    return ", ".join(f"{value} {count:,}" for value, count in counts)


_GOOD = (
    *("label", "labels", "desirable", "correct", "accepted", "approved", "good", "valid", "passed", "pass", "success"),
    *("liked", "preferred", "chosen", "verified", "helpful", "kto_tag", "resolved", "solved", "thumbs_up", "feedback"),
    *("upvoted", "upvote", "vote", "thumbs", "thumb", "acceptable", "accurate"),
)
_BAD = (
    *("bad", "incorrect", "wrong", "toxic", "toxicity", "harmful", "unsafe", "flagged", "spam", "deleted", "error"),
    *("hallucination", "hallucinated", "thumbs_down", "disliked", "undesirable", "failed", "refusal", "refused"),
    *("downvoted", "downvote"),
)
_RATING = (
    *("score", "scores", "rating", "ratings", "reward", "quality", "quality_score", "stars", "grade", "votes"),
    *("upvotes", "helpfulness", "correctness", "preference_score"),
)
_REJECTED = ("rejected", "bad_answer", "dispreferred")
_LOOK: dict[str, _Look] = {
    **dict.fromkeys(_GOOD, _marks(True)),
    **dict.fromkeys(_BAD, _marks(False)),
    **dict.fromkeys(_RATING, _ratings),
    **dict.fromkeys(_REJECTED, _worse),
    **dict.fromkeys(("weight", "sample_weight", "loss_weight"), _weights),
    **dict.fromkeys(("split", "data_split", "partition"), _splits),
}
"""Names of fields, in lower case and without `_WHOSE` -> what looks at their values."""


def warning_of(found: Sequence[Verdict], records: int) -> str | None:
    """One line before a run that would train answers marked as bad; None: there is none.

    Args:
        found: in records of the input.
        records: how many these are.
    """
    bad = [verdict for verdict in found if verdict.bad]
    if not bad:
        return None
    told = "; ".join(f"{verdict.name!r} ({verdict.which}) in {len(verdict.bad):,}" for verdict in bad)
    looked = f"{records:,} records that were looked at" if records > 1 else "the one record that was looked at"
    return f"answers marked as bad are trained like the others: of {looked}, {told}: {bad[0].mend}"


BAD_ANSWERS = "bad_answers: "
"""Prefix of the entries of `Block.made` that count records by the field that marks their answers as bad."""


@step
def count_bad_answers(records: Records, use: FieldUse) -> Records:
    """The records of a block; `made` counts those whose answers a field marks as bad, as `verdicts` finds them."""
    bad = {f"{BAD_ANSWERS}{verdict.name}": len(verdict.bad) for verdict in verdicts(records.rows, use) if verdict.bad}
    return replace(records, made=records.made | bad)
