"""`mask_options`: what is trained within the messages that are trained."""

from typing import Literal

from pydantic import Field

from beam_prep.config.values import Strict
from beam_prep.core.data.schema import MaskOptions


class MaskOptionsConfig(Strict):
    """What is trained within the messages that are trained, for template 'conversation'."""

    reasoning: Literal["train", "mask", "drop_history"] = Field(
        default="train",
        description="train; mask: not trained; drop_history: taken out of the messages before the last question.",
    )
    tool_calls: Literal["train", "mask"] = Field(default="train", description="mask: calls are not trained.")
    generation_prompt: Literal["template", "train", "mask"] = Field(
        default="template",
        description="The header of an answer. template: trained where the template's generation blocks hold it; train: "
        "always; mask: never.",
    )
    eos: Literal["train", "mask"] = Field(
        default="train", description="mask: the end tokens after a message are not trained."
    )

    def build(self) -> MaskOptions:
        """The options, for `ApplyTemplate` and `BuildMask`."""
        return MaskOptions(self.reasoning, self.tool_calls, self.generation_prompt, self.eos)
