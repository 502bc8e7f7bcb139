"""`Voice`: the chat template, tokens and rules that records are rendered with."""

from dataclasses import dataclass, field

from beam_prep.core.chat.control import Guard
from beam_prep.core.chat.template import ChatTemplate
from beam_prep.core.data.fim import Fim
from beam_prep.core.data.schema import TextRules


@dataclass(frozen=True, slots=True)
class Voice:
    """A chat template, the special tokens that it may write, and the rules for text.

    Attributes:
        template: None if no section wants one.
        controls: texts of the tokenizer's special tokens.
        bos, eos: texts of these tokens, "" where there are none.
        rules: see `TextRules`.
        fim: `rules.fim` with the tokenizer's sentinels.
        reference: the same template without plans. It renders a sample of each block too; where it gives anything
            else, it renders the entire block.
    """

    template: ChatTemplate | None
    controls: tuple[str, ...] = ()
    bos: str = ""
    eos: str = ""
    rules: TextRules = field(default_factory=TextRules)
    reference: ChatTemplate | None = None
    fim: Fim | None = None

    def cut_bos(self, text: str) -> tuple[str, int, bool]:
        """(text, characters cut, with the tokenizer's special tokens), by the rule for BOS."""
        rule, bos = self.rules.bos, self.bos
        cut = len(bos) if rule != "keep" and bos and text.startswith(bos) else 0
        return text[cut:], cut, rule == "tokenizer"

    @property
    def guard(self) -> Guard:
        """The rule for texts of special tokens in what users wrote."""
        return Guard(self.rules.control_tokens, self.controls)
