"""A sample of inputs, taken through the chain of a run without Beam, for `inspect`, `audit`, `init` and `template`."""
