"""`beam-prep inspect` and `beam-prep cat`: the rows of an output, for people and for other programs.

Trained tokens are bold green, the others dim, special tokens reversed. Without colours (a file, a pipe, NO_COLOR),
trained tokens are between `⟦` and `⟧`. Packed rows are shown document by document, padding as a count, preference
pairs side by side if the line is long enough. `beam_prep.preview` shows rows before a run.
"""
