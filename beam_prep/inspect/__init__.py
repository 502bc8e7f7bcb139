"""`beam-prep inspect` and `beam-prep cat`: the rows of an output, for people and for other programs.

`beam_prep.preview` shows rows before a run.
"""
