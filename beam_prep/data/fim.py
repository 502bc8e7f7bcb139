"""Fill in the middle: a part of the documents is reordered, so that a model learns to write what is missing.

A document is cut at two random places into prefix, middle and suffix, and becomes, with the tokenizer's sentinels,

    psm:  <prefix> prefix <suffix> suffix <middle> middle
    spm:  <prefix> <suffix> suffix <middle> prefix middle

Source: M. Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", arXiv:2207.14255; cut between
characters, as there, by documents. `spm` is its variant SPMv2, as in StarCoder.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from beam_prep.errors import TokenizerError

FimMode = Literal["psm", "spm"]

KNOWN = (
    ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    ("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
    ("<fim-prefix>", "<fim-middle>", "<fim-suffix>"),
    ("<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜fim▁hole｜>"),
    ("▁<PRE>", "▁<MID>", "▁<SUF>"),
    ("<PRE>", "<MID>", "<SUF>"),
    ("[PREFIX]", "[MIDDLE]", "[SUFFIX]"),
)
"""(prefix, middle, suffix) of Qwen, StarCoder, SantaCoder, DeepSeek, Code Llama and Codestral."""

_NUMBERS = struct.Struct("<3Q")


@dataclass(frozen=True, slots=True)
class Fim:
    """The rule by which documents are reordered. It depends on the document's text alone.

    >>> fim = Fim(rate=1.0, seed=1, sentinels=("<PRE>", "<MID>", "<SUF>"))
    >>> fim("one two three")
    '<PRE>one tw<SUF>ee<MID>o thr'
    >>> Fim(rate=0.0, sentinels=("<PRE>", "<MID>", "<SUF>"))("one two three")
    'one two three'

    Attributes:
        rate: the share of documents that are reordered, 0 to 1.
        mode: see the module.
        seed: another seed reorders others, and cuts at other places.
        sentinels: the texts of the tokens before prefix, middle and suffix; None: those of the tokenizer, see `of`.
    """

    rate: float
    mode: FimMode = "psm"
    seed: int = 0
    sentinels: tuple[str, str, str] | None = None

    def of(self, tokens: Sequence[str]) -> "Fim":
        """The rule with sentinels of a tokenizer, whose tokens that are never split are `tokens`.

        Raises:
            TokenizerError: it has none, or not those that are given.
        """
        return replace(self, sentinels=_sentinels(tokens, self.sentinels))

    def __call__(self, text: str) -> str:
        """A document, reordered or as it is.

        Raises:
            ValueError: there are no sentinels.
        """
        if self.sentinels is None:
            raise ValueError("sentinels is None, wanted those of a tokenizer: see `of`")
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=str(self.seed).encode(), digest_size=24)
        drawn, *places = _NUMBERS.unpack(digest.digest())
        if drawn >= self.rate * 2**64:
            return text
        begin, end = sorted(place % (len(text) + 1) for place in places)
        before, middle, after = self.sentinels
        if self.mode == "psm":
            return f"{before}{text[:begin]}{after}{text[end:]}{middle}{text[begin:end]}"
        return f"{before}{after}{text[end:]}{middle}{text[:begin]}{text[begin:end]}"


def _sentinels(tokens: Sequence[str], given: tuple[str, str, str] | None) -> tuple[str, str, str]:
    """(prefix, middle, suffix): those that are given, or the known ones that are among the tokens."""
    there = {*tokens}
    if given is not None:
        if missing := [token for token in given if token not in there]:
            raise TokenizerError(
                f"output.fim.sentinels: this tokenizer has no token {missing[0]!r} that it keeps in one piece; "
                f"it has {', '.join(map(repr, tokens[:20])) or 'none'}"
            )
        return given
    found = [known for known in KNOWN if there.issuperset(known)]
    if not found:
        raise TokenizerError(
            "output.fim: this tokenizer has none of the known sentinels "
            f"({', '.join(known[0] for known in KNOWN)} ...): add three tokens to it, and name them in "
            '"sentinels": [prefix, middle, suffix]'
        )
    return found[0]
