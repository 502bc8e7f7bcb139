"""PTransforms: wiring only. The work is done by functions of the same name in `core` and `chat`."""

from beam_prep.transforms import block_step as block_step  # registers the coder of blocks
