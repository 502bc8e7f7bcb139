"""`input.rollouts`: records that hold the ids of prompts and responses."""

from collections.abc import Iterator, Mapping

from pydantic import Field

from beam_prep.config.problems import Problem
from beam_prep.config.sections import OutputSpec, SectionConfig
from beam_prep.config.values import Name, Strict, Text
from beam_prep.core.data.schema import RESERVED
from beam_prep.core.reading.rollouts import RolloutFields

_DTYPES = {"policy_version": "int64"}


class RolloutsConfig(Strict):
    """Rollouts as ids, which are not encoded again: the record's key of each column."""

    prompt_ids: Text = Field(default="prompt_ids", description="Key of the prompt's ids.")
    response_ids: Text | None = Field(
        default="response_ids", description="Key of the ids of the responses; null: the records are prompts alone."
    )
    loss_mask: Text | None = Field(default=None, description="Key of the masks, 0 and 1, one for each response id.")
    logprobs: Text | None = Field(default=None, description="Key of the log probabilities, one for each response id.")
    rewards: Text | None = Field(default=None, description="Key of the rewards, one for each response.")
    policy_version: Text | None = Field(
        default=None, description="Key of the version of the policy: an integer, or one for each response."
    )
    values: dict[Name, Text] = Field(
        default={}, description="Column to key, of more numbers: one for the record, or one for each response."
    )
    texts: dict[Name, Text] = Field(
        default={}, description="Column to key, of texts that are kept as UTF-8: answers, what a verifier needs."
    )
    grouped: bool = Field(
        default=True, description="A record has all responses to its prompt, in lists; false: it has one response."
    )

    @property
    def fields(self) -> RolloutFields:
        """The same for `from_rollouts`."""
        return RolloutFields.of(self.model_dump())

    def specs(self, dtype: Mapping[str, str]) -> tuple[OutputSpec, ...]:
        """The outputs that each record becomes, in the order of `from_rollouts`."""

        def spec(name: str, kind: str, default: str, action: str = "value", mask: str | None = None) -> OutputSpec:
            sections = (SectionConfig(field=name, action=action),)  # type: ignore[arg-type]
            mask_dtype = None if mask is None else dtype.get(mask, "int32")
            return OutputSpec(name, kind, sections, mask, dtype.get(name, default), mask_dtype)  # type: ignore[arg-type]

        made = []
        if self.response_ids is not None:
            mask = None if self.loss_mask is None else "loss_mask"
            made.append(spec("response_ids", "list" if self.grouped else "ids", "int32", "train", mask))
            if self.logprobs is not None:
                made.append(spec("logprobs", "token_value", "float32"))
        made.append(spec("prompt_ids", "ids", "int32", "mask"))
        made += [spec(name, "value", _DTYPES.get(name, "float32")) for name in self.fields.numbers]
        return (*made, *(spec(name, "text", "uint8") for name in self.texts))

    def _problems(self) -> Iterator[Problem]:
        if self.response_ids is None:
            for name in ("loss_mask", "logprobs", "rewards", "policy_version"):
                if getattr(self, name) is not None:
                    yield (name,), f"found {getattr(self, name)!r} with response_ids: null; leave it out"
        taken = {name.lower() for name in ("prompt_ids", "response_ids", "loss_mask", "logprobs", "rewards")}
        taken |= {"policy_version", *RESERVED}
        for part in ("values", "texts"):
            for name in getattr(self, part):
                if name.lower() in taken:
                    yield (part, name), f"found column {name!r}, which is reserved or there already; choose another"
                taken.add(name.lower())
