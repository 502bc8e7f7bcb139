"""A sample of inputs, run through a chain without Beam, for `inspect`, `audit`, `init` and `template`."""
