"""Fill-in-the-middle (FIM): reorders a share of the documents, so that a model learns to write a missing part.

A document is cut at two random places into prefix, middle and suffix, and becomes, with the tokenizer's sentinels,

    psm:        <prefix> prefix <suffix> suffix <middle> middle
    spm:        <prefix> <suffix> suffix <middle> prefix middle
    spm_v1:     <suffix> suffix <prefix> prefix <middle> middle
    codestral:  <suffix> suffix <prefix> prefix middle

Source: M. Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", arXiv:2207.14255; documents
are cut between characters, as in the paper. `spm_v1` is its first SPM; `spm` is its variant SPMv2, used by StarCoder
and Code Llama; `codestral` is used by Mistral, and has no sentinel before the middle. Adjacent prefix and middle are
encoded together.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from beam_prep.errors import TokenizerError

FimMode = Literal["psm", "spm", "spm_v1", "codestral"]


class Parts(NamedTuple):
    """A text whose parts are encoded alone.

    Attributes:
        texts: the parts, in order. Each sentinel is a part.
        first: the number of the part with which the document begins. Only this part gets the prefix that a tokenizer
            adds to every text (SentencePiece's space), so the others get no space that the document lacks.
    """

    texts: tuple[str, ...]
    first: int


class Known(NamedTuple):
    """The FIM format of a family of models.

    Attributes:
        prefix, middle, suffix: the texts of the sentinels.
        mode: their order.
        end: the text of the token behind the middle; None: at most EOS ends it.
    """

    prefix: str
    middle: str
    suffix: str
    mode: FimMode = "psm"
    end: str | None = None


KNOWN = (
    Known("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    Known("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
    Known("<fim-prefix>", "<fim-middle>", "<fim-suffix>"),
    Known("<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜fim▁hole｜>"),
    Known("▁<PRE>", "▁<MID>", "▁<SUF>", end="▁<EOT>"),
    Known("<PRE>", "<MID>", "<SUF>"),
    Known("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "codestral"),
    Known("<[fim-prefix]>", "<[fim-middle]>", "<[fim-suffix]>", "spm_v1"),
)
"""Qwen and CodeGemma, StarCoder, SantaCoder, DeepSeek, Code Llama (twice), Codestral, Seed-Coder."""

_NUMBERS = struct.Struct("<3Q")


@dataclass(frozen=True, slots=True)
class Fim:
    """The rule that reorders documents. It depends only on the document's text.

    >>> fim = Fim(rate=1.0, seed=4, sentinels=("<PRE>", "<MID>", "<SUF>"))
    >>> fim("one two three").texts
    ('<PRE>', 'one ', '<SUF>', ' three', '<MID>', 'two')
    >>> Fim(rate=0.0, sentinels=("<PRE>", "<MID>", "<SUF>"))("one two three") is None
    True

    Attributes:
        rate: the share of documents that are reordered, 0 to 1.
        mode: see the module; None: the mode of the sentinels' family, `psm` for unknown ones.
        seed: another seed reorders other documents, and cuts at other places.
        sentinels: the texts of the tokens before prefix, middle and suffix; None: the tokenizer's, see `of`.
        end: the text of the token behind the middle; None: there is none.
    """

    rate: float
    mode: FimMode | None = None
    seed: int = 0
    sentinels: tuple[str, str, str] | None = None
    end: str | None = None

    def of(self, tokens: Sequence[str]) -> "Fim":
        """The rule with the sentinels of a tokenizer.

        Args:
            tokens: texts of the tokenizer's tokens that are never split, and take no white space beside them, which
                would change the document.

        Raises:
            TokenizerError: the tokenizer has no sentinels, or lacks the given ones.
        """
        known = _known(tokens, self.sentinels)
        end = known.end if known.end in tokens else None
        return replace(self, sentinels=known[:3], mode=self.mode or known.mode, end=end)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The texts of all tokens that the rule may write."""
        return (*(self.sentinels or ()), *([] if self.end is None else [self.end]))

    def __call__(self, text: str) -> Parts | None:
        """A document, reordered; None if it stays unchanged.

        Raises:
            ValueError: the rule has no sentinels.
        """
        if self.sentinels is None:
            raise ValueError("sentinels is None, wanted those of a tokenizer: see `of`")
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=str(self.seed).encode(), digest_size=24)
        drawn, *places = _NUMBERS.unpack(digest.digest())
        if drawn >= self.rate * 2**64:
            return None
        begin, end = sorted(place % (len(text) + 1) for place in places)
        return self._ordered(text[:begin], text[begin:end], text[end:])

    def _ordered(self, prefix: str, middle: str, suffix: str) -> Parts:
        before, between, after = self.sentinels or ("", "", "")
        # (texts, the places of prefix, middle and suffix among them)
        texts, places = {
            "psm": ((before, prefix, after, suffix, between, middle), (1, 5, 3)),
            "spm": ((before, after, suffix, between, prefix + middle), (4, 2)),
            "spm_v1": ((after, suffix, before, prefix, between, middle), (3, 5, 1)),
            "codestral": ((after, suffix, before, prefix + middle), (3, 1)),
        }[self.mode or "psm"]
        first = next((place for place in places if texts[place]), places[0])
        return Parts(texts if self.end is None else (*texts, self.end), first)


def _known(tokens: Sequence[str], given: tuple[str, str, str] | None) -> Known:
    """The family of the given sentinels; without given ones, the first family whose sentinels are among the tokens."""
    rule = "without white space beside them (lstrip, rstrip and single_word false)"
    if given is None:
        if found := next((known for known in KNOWN if {*tokens}.issuperset(known[:3])), None):
            return found
        raise TokenizerError(
            f"output.fim: this tokenizer has none of the known sentinels {rule}: "
            f"{', '.join(known.prefix for known in KNOWN)} ...; add three tokens to it, and name them in "
            '"sentinels": [prefix, middle, suffix]'
        )
    family = next((known for known in KNOWN if {*known[:3]} == {*given}), Known(*given))
    if family[:3] != given or len({*given}) < len(given) or not {*tokens}.issuperset(given):
        raise TokenizerError(
            f"output.fim.sentinels: found {[*given]}, wanted [prefix, middle, suffix], three different tokens that "
            f"this tokenizer keeps in one piece, {rule}"
            + ("" if family[:3] == given else f", in the order {[*family[:3]]}")
            + f"; it has {', '.join(map(repr, tokens[:20])) or 'none'}"
        )
    return family
