"""Fields of records that say whether an answer is good: what they mean, and which records they mark as bad."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """A field that judges answers.

    Attributes:
        name: the field.
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
    names = dict.fromkeys(name for record in records for name in record)
    found: list[Verdict] = []
    for name in names:
        look = _LOOK.get(name.lower())
        if look is None or (use.pairs and look not in (_weights, _splits)):
            continue
        if name in use.read and name not in use.kept and look is not _worse:
            continue  # a classifier's answer is its label
        values = [(place, record[name]) for place, record in enumerate(records) if record.get(name) is not None]
        found += look(name, values, use)
    return found


_Values = Sequence[tuple[int, Any]]

_UNREAD = "does not read it, and trains all alike"
_OUT = "leave these records out before the run"
_GOOD_WORDS = {
    *("true", "yes", "good", "correct", "right", "accepted", "accept", "chosen", "desirable", "pass"),
    "passed",
}
_GOOD_WORDS |= {"thumbs_up", "thumbs up", "up", "like", "liked", "approved", "1"}
_BAD_WORDS = {*("false", "no", "bad", "incorrect", "wrong", "rejected", "reject", "undesirable", "fail", "failed"), "0"}
_BAD_WORDS |= {"thumbs_down", "thumbs down", "down", "dislike", "disliked", "unsafe"}
_EVALUATION = {"test", "testing", "validation", "valid", "val", "eval", "evaluation", "dev", "heldout", "holdout"}


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


def _marks(good: bool) -> "_Look":
    def look(name: str, values: _Values, use: FieldUse) -> Iterator[Verdict]:
        said = [_good(value) for _, value in values]
        if not said or None in said:  # numbers of classes, names of topics
            return
        bad = [each for each, says in zip(values, said, strict=True) if says is not good]
        yield _verdict(name, f"marks answers as good or bad ({_counts(values)})", bad, use)

    return look


def _ratings(name: str, values: _Values, use: FieldUse) -> Iterator[Verdict]:
    numbers = [
        (place, value) for place, value in values if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if not numbers or len(numbers) < len(values):
        yield from _marks(True)(name, values, use)  # `feedback` may be a word
        return
    low, high = (choose(value for _, value in numbers) for choose in (min, max))
    # Of a scale that nobody names, what is certainly bad: nothing, less, or a quarter of the best. Where all is
    # negative it is the logarithm of a probability, which is no rating.
    bad = [each for each in numbers if high > 0 and (each[1] <= 0 or each[1] <= high / 4)]
    shown = f"{low:g} to {high:g}" if low < high else f"{low:g}"
    yield _verdict(name, f"rates answers ({shown}, in {len(numbers):,} records)", bad, use)


def _weights(name: str, values: _Values, use: FieldUse) -> Iterator[Verdict]:
    bad = [(place, value) for place, value in values if isinstance(value, int | float) and value == 0]
    if bad:
        yield _verdict(name, f"is 0 in {len(bad):,} of {len(values):,} records: do not train these", bad, use)


def _splits(name: str, values: _Values, use: FieldUse) -> Iterator[Verdict]:
    bad = [each for each in values if isinstance(each[1], str) and each[1].strip().lower() in _EVALUATION]
    if bad:
        yield _verdict(name, f"names parts of a data set, also those for evaluation ({_counts(values)})", bad, use)


def _worse(name: str, values: _Values, use: FieldUse) -> Iterator[Verdict]:
    if all(_good(value) is not None for _, value in values):
        yield from _marks(False)(name, values, use)
        return
    texts = [each for each in values if isinstance(each[1], str | list) and each[1]]
    if texts:
        does = "trains it" if name in use.trained else "does not read it"
        bad = texts if name in use.trained else []
        yield _verdict(
            name, f"holds answers that were rejected (in {len(texts):,} records)", bad, use, does, "all of it"
        )


_Look = Callable[[str, _Values, FieldUse], Iterator[Verdict]]


def _verdict(
    name: str, means: str, bad: _Values, use: FieldUse, does: str | None = None, which: str | None = None
) -> Verdict:
    if name in use.kept:
        return Verdict(name, means, use.kept[name])
    if not bad:
        return Verdict(name, means, does or _UNREAD)
    values = list(dict.fromkeys(_shown(value) for _, value in bad))
    shown = ", ".join(values[:3]) + (" ..." if len(values) > 3 else "")
    return Verdict(name, means, does or _UNREAD, tuple(place for place, _ in bad), which or shown, _mend(name, bad))


def _mend(name: str, bad: _Values) -> str:
    key, look = json.dumps(name, ensure_ascii=False), _LOOK[name.lower()]
    if look is _weights and name == "weight":
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


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 24 else f"{text[:24]} ..."


def _counts(values: _Values) -> str:
    counts = Counter(_shown(value) for _, value in values).most_common(4)
    return ", ".join(f"{value} {count:,}" for value, count in counts)


_GOOD = (
    *("label", "labels", "desirable", "correct", "accepted", "approved", "good", "valid", "passed", "pass", "success"),
    *("liked", "preferred", "chosen", "verified", "helpful", "kto_tag", "resolved", "solved", "thumbs_up", "feedback"),
)
_BAD = (
    *("bad", "incorrect", "wrong", "toxic", "harmful", "unsafe", "flagged", "spam", "deleted", "hallucination"),
    *("hallucinated", "thumbs_down", "disliked", "undesirable", "failed", "refusal"),
)
_RATING = (
    *("score", "scores", "rating", "ratings", "reward", "quality", "quality_score", "stars", "grade", "votes"),
    *("upvotes", "helpfulness", "correctness", "overall_score", "overall_rating", "preference_score"),
)
_REJECTED = ("rejected", "rejected_response", "rejected_output", "rejected_answer", "bad_answer", "dispreferred")
_PLAIN: dict[str, _Look] = {
    **dict.fromkeys(_GOOD, _marks(True)),
    **dict.fromkeys(_BAD, _marks(False)),
    **dict.fromkeys(_RATING, _ratings),
    **dict.fromkeys(_REJECTED, _worse),
}
_LOOK: dict[str, _Look] = {
    **{f"is_{name}": look for name, look in _PLAIN.items()},
    **_PLAIN,
    **dict.fromkeys(("weight", "sample_weight", "loss_weight"), _weights),
    **dict.fromkeys(("split", "data_split", "partition"), _splits),
}
"""Names of fields, in lower case -> what looks at their values."""


def warning_of(found: Sequence[Verdict], records: int) -> str | None:
    """One line before a run that would train answers marked as bad; None: there is none.

    Args:
        found: in the first records.
        records: how many these are.
    """
    bad = [verdict for verdict in found if verdict.bad]
    if not bad:
        return None
    told = "; ".join(f"{verdict.name!r} ({verdict.which}) in {len(verdict.bad):,}" for verdict in bad)
    first = f"the first {records:,} records" if records > 1 else "the first record"
    return f"answers marked as bad are trained like the others: of {first}, {told}: {bad[0].mend}"
