"""`beam-prep inspect` and `beam-prep cat`: what is in an output, for eyes and for other programs.

What the loss is taken on is shown in bold green, the rest dim, special tokens reversed; where there are no colours
(a file, a pipe, NO_COLOR), what is trained stands between `⟦` and `⟧`. Packed rows are shown document by document,
padding as a count, preference pairs side by side where there is room. `beam_prep.preview` shows rows before a run.
"""

from beam_prep.inspect.output import cat, inspect
from beam_prep.inspect.rows import render, render_row
from beam_prep.inspect.sequences import RowDisplay

__all__ = ["RowDisplay", "cat", "inspect", "render", "render_row"]
