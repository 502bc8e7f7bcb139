"""PTransforms: only wiring. Functions of the same name, in the rooms from `reading` to `shards`, do the work."""

from beam_prep.transforms import steps as steps  # registers the coder of blocks
