"""What a manifest promises of every row: limits of ids and lengths, padding, positions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beam_prep.core.data.schema import CUTTING, Column
from beam_prep.verify.tokenizer import Vocabulary


@dataclass(frozen=True, slots=True)
class Promises:
    """Of the rows of an output. None: the manifest does not say, as that of a chain written by hand.

    Attributes:
        max_id: the largest id.
        pad_id: what pads the ids of rows.
        multiple: of which the length of every padded row is one.
        longest: tokens of a sequence, or of a document in a packed row.
        capacity: tokens of a packed row.
        positions: `doc_reset` or `continuous`.
        trained: columns of masks or labels in which every row has a trained token.
        counts_cut: a row that was cut has a sequence of `longest` tokens.
        from_config: the config made the rows: its lists and values have equal lengths.
        files: how many inputs there are.
    """

    max_id: int | None = None
    pad_id: int | None = None
    multiple: int | None = None
    longest: int | None = None
    capacity: int | None = None
    positions: str | None = None
    trained: frozenset[str] = frozenset()
    counts_cut: bool = False
    from_config: bool = False
    files: int | None = None


def promises_of(manifest: Mapping[str, Any], columns: Sequence[Column], vocabulary: Vocabulary | None) -> Promises:
    """What a manifest promises.

    Args:
        manifest: the manifest.
        columns: of every row.
        vocabulary: of the tokenizer that made the output, if it is known.
    """
    max_id, pad_id = (None, None) if vocabulary is None else (vocabulary.max_id, vocabulary.pad_id)
    config = manifest.get("config")
    if config is None:
        return Promises(max_id, pad_id, files=len(manifest["inputs"]))
    rules, output = config["preprocessing"], config["output"]
    packing, padding = rules["packing_strategy"], rules["padding"]
    chunks = rules["truncation_mode"] == "chunk"  # which are cut after labels are shifted
    longest = rules["max_seq_len"] - (not chunks and any(column.shifted for column in columns))
    capacity = None if packing == "none" else rules["max_packed_len"] or rules["max_seq_len"]
    cuts = packing in CUTTING
    totals = manifest["totals"]["trained"]
    return Promises(
        max_id=max_id,
        pad_id=pad_id,
        multiple={"none": None, "max_length": rules["max_seq_len"]}.get(padding, padding),
        longest=longest if capacity is None else min(longest, capacity),
        capacity=capacity,
        positions=output.get("position_ids_mode") or ("none" if capacity is None else "doc_reset"),
        # A column that cannot train, of prompts, has nothing trained at all.
        trained=frozenset(
            column.name
            for column in columns
            if column.role in ("mask", "labels") and totals.get(column.name) and rules["untrained"] != "keep"
        )
        if capacity is None
        else frozenset(),
        counts_cut=(packing == "none" or cuts)
        and rules["truncation_mode"] in ("keep_start", "keep_end")
        and output["columns"] != "prompt_completion",  # whose parts are shorter
        from_config=True,
        files=len(manifest["inputs"]),
    )
