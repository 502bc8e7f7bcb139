"""PTransforms: wiring only. The work is done by functions of the same verb in `core`."""

from beam_prep.transforms import _elements as _elements  # registers the coders of blocks
