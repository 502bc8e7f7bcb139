"""Texts of control tokens in a record's own texts: they become the tokens, are escaped, or reject the record.

A control token is an added token that is flagged `special`, or whose text has a mark at both ends (`<tool_call>`,
`[INST]`, `|end|`), or has one mark (`### User`) and stands in the chat template. Other words, signs and runs of blanks
in the added vocabulary are not control tokens. One rule covers all texts: contents of messages, names, calls, results,
tools, documents. The one exception: an assistant's content may hold tokens that the chat template parses there, such as
`</think>` if the template splits off the reasoning.
"""

import bisect
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from beam_prep.chat.messages import Message, text_of_part
from beam_prep.chat.origins import CONTENT
from beam_prep.chat.renderer import any_of
from beam_prep.chat.trace import SourceSpan
from beam_prep.data.block import Reject
from beam_prep.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

Rule = Literal["keep", "escape", "reject"]

JOINER = "\u2060"
"""WORD JOINER: invisible; after a control token's first character, it keeps the text from being that token."""

_PUNCTUATION = frozenset("()'\",.;:!?")
"""Punctuation around words, which counts as no mark."""


def _marks(text: str) -> int:
    """The number of ends of a text (0 to 2) that are a mark: a bracket or a sign. 0 without a letter or a digit."""
    text = text.strip().strip("\u2581")  # the blank of SentencePiece
    return sum(map(_is_mark, (text[0], text[-1]))) if any(map(str.isalnum, text)) else 0


def _is_mark(character: str) -> bool:
    return character not in _PUNCTUATION and unicodedata.category(character)[0] in "PS"


def control_tokens(added: "Iterable[tokenizers.AddedToken]", template: str = "") -> tuple[str, ...]:
    """The texts of a tokenizer's control tokens, the longest first.

    Args:
        added: the tokenizer's added tokens.
        template: the source of the chat template.
    """
    found = set()
    for token in added:
        marks = _marks(token.content)
        if token.content and (token.special or marks == 2 or (marks == 1 and token.content in template)):
            found.add(token.content)
    return tuple(sorted(found, key=lambda text: (-len(text), text)))


def end_ids(tokenizer: Tokenizer) -> set[int]:
    """Ids of the tokens that may end a turn: the EOS token, and all control tokens."""
    controls = control_tokens(tokenizer.added.values())
    found = {number for number, token in tokenizer.added.items() if token.content in controls}
    return found | {number for number in (tokenizer.id_of("eos_token"),) if number is not None}


_PROBE = "probeword"
_AROUND = (("", " is said."), ("It is ", " that is said."), ("It is ", ""), ("It is\n\n", "\n\nthat is said."))


def parsed_tokens(written: Callable[[str], str | None], tokens: Iterable[str], known: Collection[str]) -> list[str]:
    """The tokens that a template parses in an assistant's content: they change more than their own place in the text.

    Args:
        written: content of the assistant -> rendered conversation; None: the template does not take it.
        tokens: the candidates.
        known: all control tokens. An opening tag (`<think>`) counts as parsed if its closing tag (`</think>`) is:
            templates that split only at the closing tag drop everything before it.
    """
    found = []
    for token in tokens:
        for before, after in _AROUND:
            word, text = written(before + _PROBE + after), written(before + token + after)
            if word is not None and text is not None and word.replace(_PROBE, token) != text:
                found.append(token)
                break
    return found + [opening for token in found if (opening := token.replace("/", "", 1)) in known and "/" in token]


class Search(NamedTuple):
    """Finds control tokens in a text: in the text itself, and in its form behind the tokenizer's normaliser.

    Attributes:
        exact: a pattern of the tokens' texts.
        normal: a pattern of the normalised texts of tokens that are made behind the normaliser; None without any.
        normalise: the normaliser.
    """

    exact: re.Pattern[str]
    normal: re.Pattern[str] | None = None
    normalise: Callable[[str], str] = str

    def __call__(self, text: str) -> re.Match[str] | None:
        """The first control token."""
        return self.exact.search(text) or self.behind(text)

    def behind(self, text: str) -> re.Match[str] | None:
        """The first control token in the normalised text."""
        return None if self.normal is None else self.normal.search(self.normalise(text))


def search_of(texts: Collection[str], tokenizer: Tokenizer | None = None) -> Search:
    """The search for these control tokens of a tokenizer."""
    normaliser = None if tokenizer is None else tokenizer.inside.normalizer
    if tokenizer is None or normaliser is None:
        return Search(re.compile(any_of(texts)))
    added = ((number, each) for number, each in tokenizer.added.items() if each.content in texts)
    looked_for = [each.content for number, each in added if _is_behind(number, each, tokenizer)]
    behind = {*map(normaliser.normalize_str, looked_for)} - {""}
    normal = re.compile(any_of(behind)) if behind else None
    return Search(re.compile(any_of(texts)), normal, normaliser.normalize_str)


def _is_behind(number: int, token: "tokenizers.AddedToken", tokenizer: Tokenizer) -> bool:
    """True if normalised text may become a token: it is matched there, or the model has it, as Unigram (T5) has."""
    rust = tokenizer.inside
    text = rust.normalizer.normalize_str(token.content)
    words = [text] if rust.pre_tokenizer is None else [word for word, _ in rust.pre_tokenizer.pre_tokenize_str(text)]
    return token.normalized or any(piece.id == number for word in words for piece in rust.model.tokenize(word))


class Guard:
    r"""The rule for texts of control tokens in a record's own texts.

    >>> Guard("escape", ("<x>",))({"a": "<x>", "b": ["c"]}, "field")
    {'a': '<\u2060x>', 'b': ['c']}

    Args:
        rule: `keep`: they become the tokens (as in transformers and TRL); `escape`: an invisible character after the
            first one makes them plain text; `reject`: the record is rejected (`control_token`).
        controls: texts of the control tokens.
        parsed: those that an assistant's content may hold.
        tokenizer: its normaliser may turn other texts into control tokens.
    """

    def __init__(
        self,
        rule: Rule = "keep",
        controls: Sequence[str] = (),
        parsed: Collection[str] = (),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.rule, self.controls, self.parsed = rule, controls, parsed
        self._anywhere = search_of(controls, tokenizer)
        self._in_answers = search_of([token for token in controls if token not in parsed], tokenizer)

    def __call__(self, value: Any, where: str) -> Any:
        """The value with all its strings guarded, and also the keys of objects, because templates write them.

        Args:
            value: a value of a record.
            where: its place, for messages of rejects.

        Raises:
            Reject: see `rule`.
        """
        if self.rule == "keep" or self.find(value) is None:
            return value
        return self._guarded(value, where, self._anywhere)

    def messages(self, messages: Sequence[Message], where: str) -> Sequence[Message]:
        """The messages, guarded. For arguments and errors see `__call__`."""
        if self.rule == "keep" or all(self.find_in(message) is None for message in messages):
            return messages
        return [self._message(message, f"{where}[{turn}]") for turn, message in enumerate(messages)]

    def find(self, value: Any) -> re.Match[str] | None:
        """A control token in a value; None without one."""
        return _find(value, self._anywhere)

    def find_in(self, message: Message) -> re.Match[str] | None:
        """A control token in a message; None without one. The tokens that an answer may hold do not count."""
        for key, value in message.items():
            search = self._of(message, key)
            found = _find(value, search)
            if found is None and key == "content" and type(value) is list:
                found = search(_joined(value))
            if found is not None:
                return found
        return None

    def check_seams(self, text: str, said: Sequence[SourceSpan], where: str) -> None:
        """Checks a joined text for control tokens that only partly come from a record's own texts.

        Args:
            text: the joined text.
            said: the record's own texts within it, each guarded.
            where: its place, for messages of rejects.

        Raises:
            Reject: `control_token`: a token begins or ends within a piece, or spans several pieces.
        """
        if self.rule == "keep" or not said:
            return
        begins = [each.begin for each in said]
        for found in self._anywhere.exact.finditer(text):
            start, stop = found.span()
            first = bisect.bisect_right(begins, start) - 1
            there = said[max(first, 0) : bisect.bisect_left(begins, stop)]
            there = [each for each in there if each.begin < stop and start < each.end]
            whole = len(there) == 1 and there[0].begin <= start and stop <= there[0].end
            parsed = found[0] in self.parsed and all(each.keys[:1] == CONTENT for each in there)
            if there and not whole and not parsed:
                shown = text[max(start - 20, 0) : stop + 20]
                message = f"in {where!r} joined texts form the control token {found[0]!r}: {shown!r}; change the texts"
                raise Reject("control_token", message)

    def check_joined(self, texts: Sequence[str | None], where: str) -> None:
        """The same check for texts that are joined without separator; None is skipped."""
        if self.rule != "keep":
            given = [text for text in texts if text]
            ends = itertools.accumulate(map(len, given))
            said = [SourceSpan(end - len(text), end, 0, (), 0) for text, end in zip(given, ends, strict=True)]
            self.check_seams("".join(given), said, where)

    def _of(self, message: Message, key: str) -> Search:
        return self._in_answers if key == "content" and message.get("role") == "assistant" else self._anywhere

    def _message(self, message: Message, where: str) -> Message:
        made = {key: self._guarded(value, f"{where}.{key}", self._of(message, key)) for key, value in message.items()}
        if isinstance(made.get("content"), list):
            made["content"] = self._parts(made["content"], f"{where}.content", self._of(message, "content"))
        return made

    def _parts(self, parts: list[Any], where: str, search: Search) -> list[Any]:
        """Guards the parts of a content. A token may span several parts, because templates join them."""
        ends = [*itertools.accumulate(len(text_of_part(part)) for part in parts)]
        made, text, place = [*parts], _joined(parts), 0
        while (found := search.exact.search(text, place)) is not None:
            self._check(found, where)
            place = found.start() + 1
            first = bisect.bisect_right(ends, found.start())  # the part in which the token begins
            written = text_of_part(parts[first]) + JOINER
            made[first] = written if isinstance(parts[first], str) else {**parts[first], "text": written}
        self._check_behind(_joined(made), where, search)
        return made

    def _guarded(self, value: Any, where: str, search: Search) -> Any:
        if isinstance(value, str):
            return self._text(value, where, search)
        if isinstance(value, list):
            return [self._guarded(item, f"{where}[{place}]", search) for place, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        made = {}
        for key, item in value.items():
            inside = _inside(key, item)
            try:
                guarded = self._guarded(inside, f"{where}.{key}", search)
            except RecursionError:
                raise Reject("too_deep", f"'{where}.{key}' is nested too deep") from None
            if inside is not item:
                guarded = item if guarded == inside else json.dumps(guarded, ensure_ascii=False)
            made[self._text(key, where, search)] = guarded
        return made

    def _text(self, text: str, where: str, search: Search) -> str:
        pieces, place = [], 0
        # After an escape, the rest may hold another token, which begins inside the first one.
        while (found := search.exact.search(text, place)) is not None:
            self._check(found, where)
            pieces.append(text[place : found.start() + 1])
            place = found.start() + 1
        if pieces:
            text = JOINER.join((*pieces, text[place:]))
        self._check_behind(text, where, search)
        return text

    def _check_behind(self, text: str, where: str, search: Search) -> None:
        if (found := search.behind(text)) is not None:
            raise Reject(
                "control_token",
                f"{where!r} holds a text that the tokenizer's normaliser turns into the control token {found[0]!r}, "
                "wanted none: change the text",
            )

    def _check(self, found: re.Match[str], where: str) -> None:
        if self.rule == "reject":
            raise Reject(
                "control_token",
                f'{where!r} holds the control token {found[0]!r}, wanted none ("control_tokens": "escape" in '
                '"preprocessing" makes it plain text)',
            )


def _find(value: Any, search: Search) -> re.Match[str] | None:
    if type(value) is str:  # the most frequent case
        return search(value)
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, str):
            if (found := search(each)) is not None:
                return found
        elif isinstance(each, list):
            todo += each
        elif isinstance(each, dict):
            todo += each
            todo += [_inside(key, item) for key, item in each.items()]
    return None


def _inside(key: str, value: Any) -> Any:
    r"""Arguments of a call as JSON in a string: parsed if an escape (`\u003c`) may hide what templates see."""
    if key != "arguments" or not isinstance(value, str) or "\\" not in value:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _joined(parts: Sequence[Any]) -> str:
    return "".join(map(text_of_part, parts))
