"""PTransforms: only wiring. Functions of the same name, in the rooms from `reading` to `shards`, do the work."""

from beam_prep.transforms import block_step as block_step  # registers the coder of blocks
