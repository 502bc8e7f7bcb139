"""The version of beam_prep: in manifests, and in the name of every cached block."""

__version__ = "0.1.0"
