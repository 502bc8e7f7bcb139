"""BuildMask: which tokens are trained on."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import get_args

from beam_prep.core.data.schema import DefaultRule, MaskOptions, RoleRule
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.mask import MaskPolicy, RoleMask, build_mask
from beam_prep.transforms.block_step import BlockStep


@dataclasses.dataclass(eq=False)
class BuildMask(BlockStep):
    """`Batch` -> `Batch`: adds the mask column of each output that has one: 1 where the loss is taken.

    Attributes:
        policy: a config's `mask` (role -> `train`, `mask` or `last`), or a function on `Segments` that returns
            bool [segments]: True for the segments that are trained.
        default: the rule of roles that a mapping does not name.
        options: with a mapping: what is trained within messages. `ApplyTemplate` needs the same, in its rules.

    >>> tokenizer = bp.Tokenizer.load("examples/tokenizer")
    >>> row = bp.Output("ids", "ids", (bp.Section("messages", "$role", "conversation"),), "loss_mask")
    >>> chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    >>> block = bp.ApplyTemplate([row], tokenizer).step()(bp.testing.records([{"messages": chat}]))
    >>> batch = bp.BuildMask({"assistant": "train"}).step()(bp.Tokenize(tokenizer).step()(block))
    >>> tokenizer.decode(batch["ids"].flat[batch["loss_mask"].flat == 1].tolist())
    'Yes.<|im_end|>'
    """

    policy: Mapping[str, RoleRule] | MaskPolicy
    default: DefaultRule = "mask"
    options: MaskOptions | None = None

    gives = Batch

    def __post_init__(self) -> None:
        super().__init__()
        if isinstance(self.policy, Mapping):
            wrong = {role: rule for role, rule in self.policy.items() if rule not in get_args(RoleRule)}
            if wrong:
                raise ValueError(f"policy is {wrong}, wanted one of {', '.join(get_args(RoleRule))} for a role")
            if self.default not in get_args(DefaultRule):
                raise ValueError(f"default is {self.default!r}, wanted one of {', '.join(get_args(DefaultRule))}")
            self.policy = RoleMask(dict(self.policy), self.default, self.options)

    def step(self) -> Callable[[Batch], Batch]:
        assert not isinstance(self.policy, Mapping)  # `__post_init__` made it a function
        return partial(build_mask, policy=self.policy)
