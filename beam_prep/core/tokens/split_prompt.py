"""Preference pairs as a prompt and two completions."""

from typing import Any

import numpy as np

from beam_prep.core.data.block import step
from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.core.data.schema import PROMPT_COMPLETION, Column
from beam_prep.core.tokens.batch import Batch
from beam_prep.core.tokens.mask import Untrained, reject_equal_sides, settle_untrained

SIDES = ("chosen", "rejected")


@step
def split_prompt(batch: Batch, untrained: Untrained = "drop") -> Batch:
    """`chosen`, `rejected` and their masks -> `chosen_ids` and `rejected_ids`, the completions, and `prompt_ids`.

    The prompt is what comes before the first trained token; all after it must be trained. Rows with nothing to train on
    are dropped or rejected, by `untrained`; `keep` drops them, too: they have no completion. Rejects: `equal_sides`;
    `prompt_differs`, the sides have other prompts; `not_prompt_first`, a token after the first trained one is not.

    Raises:
        ValueError: the batch has other columns.
    """
    masks = [next((o.mask_name for o in batch.outputs if o.name == side), None) for side in SIDES]
    if None in masks or set(batch.columns) != {*SIDES, *masks}:
        raise ValueError(
            f"prompts are split off chosen and rejected with masks, the batch has {', '.join(batch.columns)}"
        )
    batch = settle_untrained(reject_equal_sides(batch), "reject" if untrained == "reject" else "drop")
    sizes = [_prompt_sizes(batch[str(mask)]) for mask in masks]
    mixed = np.any([prompt < 0 for prompt in sizes], axis=0)
    if mixed.any():
        batch = batch.reject(mixed, "not_prompt_first", "a token after the first trained one is not trained")
        sizes = [prompt[~mixed] for prompt in sizes]
    prompts = [batch[side] for side in SIDES]
    differs = sizes[0] != sizes[1]
    for row in np.flatnonzero(~differs).tolist():
        one, other = (np.asarray(rows[row])[: sizes[0][row]] for rows in prompts)
        differs[row] = not np.array_equal(one, other)
    if differs.any():
        batch = batch.reject(differs, "prompt_differs", "chosen and rejected do not begin with the same prompt")
        sizes = [prompt[~differs] for prompt in sizes]
    columns: dict[str, Any] = {
        name: _cut(batch[side], prompt, batch[side].lengths)
        for name, side, prompt in zip(PROMPT_COMPLETION[:2], SIDES, sizes, strict=True)
    }
    columns[PROMPT_COMPLETION[2]] = _cut(batch[SIDES[0]], np.zeros_like(sizes[0]), sizes[0])
    return batch._with(columns=columns, schema={name: Column(name, "int32", 1, "ids") for name in columns})


def _prompt_sizes(mask: Ragged) -> Array:
    """int64 [rows]: tokens before the first trained one; -1 if a later one is not trained. Every row has one."""
    trained = mask.sums(mask.flat != 0)
    size = mask.lengths - trained
    places = np.arange(len(mask.flat)) - np.repeat(mask.offsets[:-1], mask.lengths)
    at_end = mask.sums((mask.flat != 0) & (places >= np.repeat(size, mask.lengths)))
    return np.where(at_end == trained, size, -1)


def _cut(rows: Ragged, start: Array, stop: Array) -> Ragged:
    """Values [start, stop) of each row."""
    places = np.arange(len(rows.flat)) - np.repeat(rows.offsets[:-1], rows.lengths)
    kept = (places >= np.repeat(start, rows.lengths)) & (places < np.repeat(stop, rows.lengths))
    return Ragged.from_lengths(rows.flat[kept], stop - start)
