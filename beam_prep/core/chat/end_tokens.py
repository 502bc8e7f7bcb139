"""The special tokens in a rendered text, and the one that ends an answer."""

import functools
import re


@functools.lru_cache(maxsize=64)
def control_pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    """Matches any of the special tokens, the longest where several begin."""
    return re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or r"(?!)")


@functools.lru_cache(maxsize=64)
def ending_pattern(controls: tuple[str, ...]) -> re.Pattern[str]:
    """Matches white space and a special token."""
    return re.compile(rf"\s*({control_pattern(controls).pattern})")


def after_end(text: str, end: re.Match[str], eos: str) -> int:
    """One past an end token, and past an EOS that follows it at once."""
    return end.end() + len(eos) if eos and end[1] != eos and text.startswith(eos, end.end()) else end.end()


def end_of_answer(text: str, stop: int, controls: tuple[str, ...], eos: str) -> int:
    """Where the last answer of a text ends: after its end token and an EOS, or with the text if only blanks follow."""
    end = ending_pattern(controls).match(text, stop)
    if end is not None:
        stop = after_end(text, end, eos)
    return stop if text[stop:].strip() else len(text)
