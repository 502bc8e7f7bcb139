"""Fields of records that rate answers: what their values mean, and which records they mark as bad.

A field rates answers if its name says so, and if all its values can be a verdict: yes or no, a word for good or bad, a
number of a closed scale. If the answers are the field's values, the field is the label of a classification task, and
rates nothing.
"""

import dataclasses
import functools
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from beam_prep.data.block import step
from beam_prep.hints import counted, shortened
from beam_prep.reading.records import Records


@dataclass(frozen=True, slots=True)
class FieldUse:
    """How a config uses the fields of a record.

    Attributes:
        kept: fields that are kept beside the tokens, or that decide over records -> how, as a sentence without subject.
        read: fields that are read as texts, messages or ids.
        trained: those fields of `read` that are trained.
        answers: True: rows are answers to something; False: documents or rollouts.
        pairs: True: each record is a better and a worse answer.
        also: fields that adapters and chat templates read if a record has them.

    >>> sorted(bp.FieldUse(read=frozenset({"prompt"}), kept={"label": "keeps it beside the tokens"}).known)
    ['label', 'prompt']
    """

    kept: Mapping[str, str] = dataclasses.field(default_factory=dict)
    read: frozenset[str] = frozenset()
    trained: frozenset[str] = frozenset()
    answers: bool = True
    pairs: bool = False
    also: frozenset[str] = frozenset()

    @property
    def tokens(self) -> frozenset[str]:
        """The fields that become tokens or say which tokens are trained: records that are equal in these are copies."""
        return self.read | self.also

    @property
    def known(self) -> frozenset[str]:
        """The fields that are read or kept."""
        return self.tokens | frozenset(self.kept)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A field that rates answers.

    Attributes:
        name: the field; `meta.label` of an object in it, `messages[].label` of its messages.
        means: its meaning, and the values that were found.
        does: how the config uses it.
        bad: places of the records that it marks as bad and that are trained like the others.
        which: the values of these records.
        mend: what to do about these records; "" if there are none.
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
    """The fields that rate answers, and how a config uses them.

    >>> records = [{"prompt": "1 + 1?", "completion": "2", "label": True}] * 2
    >>> records += [{"prompt": "1 + 1?", "completion": "3", "label": False}]
    >>> (found,) = verdicts(records, FieldUse(trained=frozenset({"completion"})))
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
            if not _is_silent(value):
                fields.setdefault(field, []).append((place, value))
    found: list[Verdict] = []
    for field, values in fields.items():
        look = _look_of(field)
        if look is None or (use.pairs and look not in _OF_RECORDS):
            continue
        if field.name in use.tokens and field.top not in use.kept:
            continue  # the label of a classifier is its answer
        if (seen := look(values)) is None:
            continue
        bad = [each for each, is_bad in zip(values, seen.bad, strict=True) if is_bad]
        if not (bad and look not in _OF_RECORDS and _are_classes(values, records, use)):
            in_all = len({place for place, _ in values}) == len(records)
            found.append(_verdict(field, seen.means, bad, use, in_all))
    return found


class _Field(NamedTuple):
    """A field of records, of objects in them (`meta.label`), or of messages (`messages[].label`).

    Attributes:
        top: the field of the record.
        name: its path, as shown in messages; equal to `top` for a field of the record.
        keys: its own name, then the name of the object that holds it.
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
                if type(message) is dict and message.get("role", message.get("from")) not in _ASKS:
                    for key in message:
                        if key not in _OF_MESSAGES:
                            yield _Field(top, f"{top}[].{key}", (key,)), message[key]
        else:
            yield _Field(top, top, (top,)), value


_ASKS = ("system", "user", "human")
_OF_MESSAGES = {"role", "content", "from", "value", "weight", "train", "tool_calls", "tool_call_id", "name"}
"""Keys of messages that have another use."""


def _look_of(field: _Field) -> "_Look | None":
    """The function that judges a field's values, by the field's name; None: the field rates nothing.

    The name of the object that holds the field counts if the field's own name says nothing else (`rating.average`, not
    `rating.count`), or gives an aspect of the rating (`score.helpful`).
    """
    own, *holders = map(_words_of, field.keys)
    look = next((_LOOK[each] for each in own if each in _LOOK), None)
    outer = next((_LOOK[each] for each in (holders[0] if holders else ()) if each in _LOOK), None)
    if look is None:
        return outer if "" in own else None
    return outer if look is _good and outer in (_ratings, _scores) else look


@functools.lru_cache(maxsize=4096)
def _words_of(name: str) -> tuple[str, str]:
    """(name in lower case, the same without the words for who judges, and what)."""
    words = [word.lower() for word in _WORD.findall(name.replace("-", "_"))]
    return name.lower(), "_".join(word for word in words if word not in _WHOSE)


_WORD = re.compile(r"[A-Z]*[^A-Z_\W]+|[A-Z]+")
_WHOSE = {
    *"is was has human user model llm judge gpt annotator expert reviewer final overall answer response".split(),
    *"completion output assistant solution review value average avg mean".split(),
}

_Values = Sequence[tuple[int, Any]]
"""(place of the record, value)"""


class _Seen(NamedTuple):
    """The meaning of values, and whether the answer of each is bad."""

    means: str
    bad: Sequence[bool]


_Look = Callable[[_Values], _Seen | None]
"""Values of a field -> their meaning under its name; None: no verdict."""

_UNREAD = "does not read it, and trains all alike"
_OUT = "leave these records out before the run"
_SAYS_GOOD = {
    *"good correct right accepted accept chosen desirable pass passed success valid liked approved upvoted".split(),
    *"acceptable accurate successful excellent".split(),
    "thumbs up",
}
_SAYS_BAD = {
    *"bad incorrect wrong rejected reject undesirable fail failed failure refused disliked downvoted".split(),
    *"disapproved unacceptable inaccurate invalid poor".split(),
    *("thumbs down", "very poor", "wrong answer"),
}
_YES, _NO = {"true", "yes", "1"}, {"false", "no", "0"}
_GOOD_WORDS = _SAYS_GOOD | _YES | {"up", "like", "safe", "ok"}
_BAD_WORDS = _SAYS_BAD | _NO | {"down", "dislike", "unsafe"}
_SILENT = {
    *"- n/a na nan none null unknown unsure unclear neutral tie both mixed partial skip skipped average fair".split(),
    *("", "partially correct"),
}
"""Words among verdicts that are no verdict."""
_LONGEST_WORD = 24


def _word(value: Any) -> str | None:
    if not isinstance(value, str) or len(value) > _LONGEST_WORD:
        return None
    return value.strip().lower().replace("_", " ")


def _is_silent(value: Any) -> bool:
    return value in (None, [], {}) or value != value or _word(value) in _SILENT  # NaN differs from itself


def _says(value: Any, yes: Set[str], no: Set[str]) -> bool | None:
    """True or False for a value that means yes or no; otherwise None."""
    if isinstance(value, int | float):
        return bool(value) if value in (0, 1) else None
    if isinstance(value, list) and all(isinstance(each, bool) for each in value):
        return all(value)  # a verdict for each step, or for each of several answers
    word = _word(value)
    return True if word in yes else False if word in no else None


def _numbers(values: _Values) -> list[float]:
    """The values as numbers; [] if one is none. In a table of texts, numbers are texts."""
    found = []
    for _, value in values:
        number = float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < _HUGE:
            return []
        found.append(number)
    return found


_HUGE = 1e300  # NaN and Infinity are no ratings either
_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.\d{1,20})?", re.A)


def _marks(values: _Values, bad: Iterable[bool | None]) -> _Seen | None:
    found = [*bad]
    # If one value is no verdict, the values are classes or states: `label: 0, 1, 2`, `status: failed, pending`.
    return None if None in found else _Seen(f"marks answers as good or bad ({_counts(values)})", [*map(bool, found)])


def _good(values: _Values, yes: Set[str] = _GOOD_WORDS, no: Set[str] = _BAD_WORDS) -> _Seen | None:
    numbers = _numbers(values)
    if -1 in numbers:  # then 0 is neutral; -1 alone means "no label"
        are_signs = {-1} < {*numbers} <= {-1, 0, 1}
        return _marks(values, [number == -1 for number in numbers]) if are_signs else None
    said = [_says(value, yes, no) for _, value in values]
    return _marks(values, (None if good is None else not good for good in said))


# Under other names (`label`), these two words are sentiments.
_feedback = functools.partial(_good, yes=_GOOD_WORDS | {"positive"}, no=_BAD_WORDS | {"negative"})


def _bad(values: _Values) -> _Seen | None:
    numbers = _numbers(values)
    if numbers:  # probabilities, or 0 and 1; larger numbers are counts
        return _marks(values, [number >= 0.5 for number in numbers]) if 0 <= min(numbers) <= max(numbers) <= 1 else None
    return _marks(values, (_says(value, _YES, _NO) for _, value in values))


def _of_anything(values: _Values) -> _Seen | None:
    """For names that do not say what is judged: numbers may be codes, and yes or no may answer a question."""
    said = [_says(value, _SAYS_GOOD, _SAYS_BAD) if isinstance(value, str) else None for _, value in values]
    return _marks(values, (None if good is None else not good for good in said))


def _ratings(values: _Values, may_count: bool = False) -> _Seen | None:
    numbers = _numbers(values)
    if not numbers:
        if all(isinstance(value, str) and _GRADE.fullmatch(value) for _, value in values):
            return _Seen(f"rates answers ({_counts(values)})", [value[0] in "Ff" for _, value in values])
        return _good(values)  # a rating may be a word
    low, high = min(numbers), max(numbers)
    shown = f"{low:g} to {high:g}" if low < high else f"{low:g}"
    rated = counted(len({place for place, _ in values}), "record")
    means = f"rates answers ({shown}, in {rated})"
    if low < 0:  # rewards or votes; if all are negative, they are log probabilities
        return _Seen(means, [number < 0 <= high for number in numbers])
    end = next((end for end in _ENDS if 0.8 * end <= high <= end), 0)
    if end > 1 and may_count and statistics.median_high(numbers) < end / 2:  # counts are mostly low
        end = 0
    return _Seen(means, [bool(end) and number <= end / 4 for number in numbers])


_scores = functools.partial(_ratings, may_count=True)
_ENDS = (1, 2, 3, 5, 7, 10, 100)
"""Ends of scales. Up to a quarter of the scale is certainly bad. An open scale has no such border."""
_GRADE = re.compile("[A-Fa-f][+-]?")


def _weights(values: _Values) -> _Seen | None:
    bad = [isinstance(value, int | float) and value == 0 for _, value in values]
    return _Seen(f"is 0 in {sum(bad):,} of {len(values):,} records: do not train these", bad) if any(bad) else None


def _splits(values: _Values) -> _Seen | None:
    bad = [_word(value) in _EVALUATION for _, value in values]
    means = f"names parts of a data set, also those for evaluation ({_counts(values)})"
    return _Seen(means, bad) if any(bad) else None


_EVALUATION = {"test", "testing", "validation", "valid", "val", "eval", "evaluation", "dev", "heldout", "holdout"}


def _are_classes(values: _Values, records: Sequence[Mapping[str, Any]], use: FieldUse) -> bool:
    """True if a few answers come again and again, each always with one value: then the values are classes of a task."""
    found: Counter[str] = Counter()
    value_of: dict[str, str] = {}
    for place, value in values:
        answer = _answer(records[place], use).strip().lower()
        found[answer] += 1
        if not answer or len(found) > _MOST_CLASSES or value_of.setdefault(answer, str(value)) != str(value):
            return False
    return len({*value_of.values()}) > 1 and min(found.values()) >= _OFTEN


_MOST_CLASSES, _OFTEN = 50, 3
"""Most different answers, and least count of each."""


def _answer(record: Mapping[str, Any], use: FieldUse) -> str:
    """The last text that is trained, or that an adapter reads; "" without one."""
    names = [name for name in record if name in use.trained] or [name for name in record if name in use.read]
    value = record[names[-1]] if names else None
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content", value[-1].get("value"))
    return value if isinstance(value, str) else ""


def _verdict(field: _Field, means: str, bad: _Values, use: FieldUse, in_all: bool) -> Verdict:
    if field.top in use.kept:
        return Verdict(field.name, means, use.kept[field.top])
    if not bad:
        return Verdict(field.name, means, _UNREAD)
    values = list(dict.fromkeys(_shown(value) for _, value in bad))
    shown = ", ".join(values[:3]) + (" ..." if len(values) > 3 else "")
    places = tuple(dict.fromkeys(place for place, _ in bad))  # several messages of a record
    return Verdict(field.name, means, _UNREAD, places, shown, _mend(field, bad, in_all))


def _mend(field: _Field, bad: _Values, in_all: bool) -> str:
    if field.name.startswith(f"{field.top}[]"):
        return f'{_OUT}; or "weight": 0 in these messages, which are not trained then'
    if field.name == "weight":
        return f'{_OUT}; or "output": {{"loss_weights": true}}, which gives their tokens no weight'
    kinds = {type(value) for _, value in bad}
    kind = "bool" if kinds == {bool} else "float32" if kinds <= {bool, int, float} else "string"
    # Only a field of the record can be kept. A typed column rejects the records that lack the field.
    if field.name != field.top or list in kinds or (kind != "string" and not in_all) or _look_of(field) is _splits:
        return _OUT
    key = json.dumps(field.name, ensure_ascii=False)
    return f'{_OUT}; or "output": {{"keep_fields": {{{key}: "{kind}"}}}} for a trainer that reads the field (as KTO)'


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return shortened(text, 24)


def _counts(values: _Values) -> str:
    counts = Counter(_shown(value) for _, value in values).most_common(4)
    return ", ".join(f"{value} {count:,}" for value, count in counts)


_GOOD = (
    "label labels desirable correct accepted approved good valid passed pass success liked preferred chosen verified "
    "helpful kto_tag resolved solved thumbs_up upvoted upvote vote thumbs thumb acceptable accurate safe verdict "
    "review_result loss loss_mask compute_loss train_on_turn training trainable learn"
)
_BAD = (
    "bad incorrect wrong toxic toxicity harmful unsafe flagged spam deleted error hallucination hallucinated "
    "thumbs_down disliked undesirable failed refusal refused downvoted downvote rejected ignore"
)
_OF_RECORDS = (_weights, _splits)
_LOOK: dict[str, _Look] = {
    **dict.fromkeys(_GOOD.split(), _good),
    "feedback": _feedback,
    **dict.fromkeys(_BAD.split(), _bad),
    **dict.fromkeys("status result annotation preference judgement judgment evaluation".split(), _of_anything),
    **dict.fromkeys("rating ratings quality quality_score helpfulness correctness".split(), _ratings),
    **dict.fromkeys("score scores reward stars grade votes upvotes".split(), _scores),
    **dict.fromkeys(("weight", "sample_weight", "loss_weight"), _weights),
    **dict.fromkeys(("split", "data_split", "partition"), _splits),
}
"""Names of fields, in lower case and without `_WHOSE` -> the function that judges their values."""


def warning_of(found: Sequence[Verdict], records: int) -> str | None:
    """A one-line warning before a run that would train answers marked as bad; None if there are none.

    Args:
        found: the verdicts in records of the input.
        records: number of these records.
    """
    bad = [verdict for verdict in found if verdict.bad]
    if not bad:
        return None
    listed = "; ".join(f"{verdict.name!r} ({verdict.which}) in {len(verdict.bad):,}" for verdict in bad)
    looked = counted(records, "record")
    return f"answers marked as bad are trained like the others: of {looked} looked at, {listed}: {bad[0].mend}"


BAD_ANSWERS = "bad_answers: "
"""Prefix of the entries of `Block.made` that count records by the field that marks their answers as bad."""


@step
def count_bad_answers(records: Records, use: FieldUse) -> Records:
    """The same records; `made` counts those with answers that a field marks as bad, see `verdicts`."""
    bad = {f"{BAD_ANSWERS}{verdict.name}": len(verdict.bad) for verdict in verdicts(records.rows, use) if verdict.bad}
    return replace(records, made=records.made | bad)
