"""Compares an output with its manifest: every file, every count. Needs no Beam and no tokenizer library."""
