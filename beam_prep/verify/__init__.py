"""Compares an output with its manifest: every file, every count. It needs no Beam and no tokenizer library."""
