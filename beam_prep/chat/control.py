"""Control-token text inside contents (`<|im_end|>` typed by a user): kept, escaped, or a reason to reject."""

import functools
import re
from dataclasses import dataclass
from typing import Any, Literal

from beam_prep.core.data.block import Reject

Rule = Literal["keep", "escape", "reject"]

JOINER = "\u2060"
"""WORD JOINER: invisible; after a control token's first character, it keeps the text from being that token."""


@functools.lru_cache(maxsize=16)
def _pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, controls)) or r"(?!)")


@dataclass(frozen=True, slots=True)
class Guard:
    """The rule for texts of special tokens in what users wrote.

    Attributes:
        rule: `keep`: they become the special tokens (what transformers and TRL do); `escape`: an invisible character
            after their first one makes them plain text; `reject`: the record is rejected (`control_token`).
        controls: texts of the tokenizer's special tokens.
    """

    rule: Rule = "keep"
    controls: tuple[str, ...] = ()

    def __call__(self, value: Any) -> Any:
        """The value with all its strings guarded; keys of objects too, as templates write them.

        Raises:
            Reject: see `rule`.
        """
        if self.rule == "keep":
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self(item) for item in value]
        if isinstance(value, dict):
            return {self._text(key): self(item) for key, item in value.items()}
        return value

    def _text(self, text: str) -> str:
        # After an escape, the rest may hold another token, which began inside the first.
        place = 0
        while (found := _pattern(self.controls).search(text, place)) is not None:
            if self.rule == "reject":
                raise Reject("control_token", f"the text holds the special token {found[0]!r}, wanted none")
            text = text[: found.start() + 1] + JOINER + text[found.start() + 1 :]
            place = found.start() + 1
        return text
