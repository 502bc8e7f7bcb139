"""PTransforms: wiring only. The work is done by functions of the same name, of `reading` to `shards`."""

from beam_prep.transforms import block_step as block_step  # registers the coder of blocks
