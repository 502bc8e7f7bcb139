"""`beam-prep inspect` and `beam-prep cat`: rows of an output."""

import itertools
import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import orjson
from rich.text import Text

from beam_prep.core.data.drawn import drawn
from beam_prep.core.data.ragged import Array, Ragged
from beam_prep.errors import BeamPrepError
from beam_prep.formats import FORMATS
from beam_prep.inspect.rows import render
from beam_prep.inspect.screen import Screen, legend, stop_when_reader_closes
from beam_prep.inspect.text import percent
from beam_prep.readers.dataset import Dataset
from beam_prep.readers.open import open_dataset


def inspect(
    output: str | os.PathLike[str], record: int | None = None, count: int | None = None, domain: str | None = None
) -> None:
    """Prints records of an output, decoded: the first, the shortest, the longest, and a few that are drawn.

    They are the same each time. If there are many shards, only some are searched for the shortest and the longest.

    Args:
        output: an output directory.
        record: the number of the only record to print (negative: from the end); with `domain`, its number there.
        count: print this many records instead, the first ones.
        domain: only records of this domain.

    Raises:
        BeamPrepError: there is no such output, domain or record.
    """
    dataset = open_dataset(output)
    rows = dataset if domain is None else dataset.domain(domain)
    if record is not None:
        numbers = {_number(rows, record, domain): ""}
    elif count is not None:
        numbers = dict.fromkeys(range(min(checked_count(count), len(rows))), "")
    else:
        known, sizes = rows.sizes(_SHARDS)
        unit = " in bytes" if FORMATS[dataset.format].sizes_in == "bytes" else ""
        some = f" of {_SHARDS} shards" if len(known) < len(rows) else ""
        numbers = rows_to_show(known, sizes, len(rows), unit + some)
    screen = Screen()
    texts = (render(rows, number, screen.marks, screen.width, why) for number, why in numbers.items())
    screen.show(itertools.chain([_totals(dataset, screen.marks)], texts))


_SHARDS = 16  # searched for the shortest and the longest row
_DRAWN = 3


def rows_to_show(numbers: Array, sizes: Array, rows: int, some: str = "") -> dict[int, str]:
    """Row -> why it is shown: the first, the shortest, the longest, and a few that are drawn, always the same ones.

    Args:
        numbers: int64, the rows whose size is known.
        sizes: int64, their sizes.
        rows: how many there are.
        some: added to the reason of the shortest and the longest.
    """
    if not rows:
        return {}
    why: dict[int, list[str]] = {0: ["the first"]}
    for name, place in (("shortest", np.argmin(sizes)), ("longest", np.argmax(sizes))):
        why.setdefault(int(numbers[place]), []).append(f"the {name}{some}")
    others = [number for number in drawn(rows, _DRAWN + len(why)).tolist() if number not in why]
    why |= {number: ["drawn"] for number in others[:_DRAWN]}
    return {number: ", ".join(reasons) for number, reasons in why.items()}


def cat(output: str | os.PathLike[str], count: int | None = None, domain: str | None = None) -> None:
    """Prints rows as JSON lines: {"domain": ..., column: [...], ...}.

    NaN and infinite values are null in JSON. A column of texts has strings in place of its bytes.

    Args:
        output: an output directory.
        count: the most rows to print; default: all.
        domain: only rows of this domain.

    Raises:
        BeamPrepError: there is no such output or domain.
    """
    dataset = open_dataset(output)
    texts = {column.name for column in dataset.schema if column.role == "text"}

    def plain(key: str, value: Array | Ragged) -> Any:
        if isinstance(value, Ragged):
            return [plain(key, one) for one in value]
        return value.tobytes().decode(errors="replace") if key in texts else value

    left = len(dataset) if count is None else min(checked_count(count), len(dataset))
    with stop_when_reader_closes():
        for name in dataset.domains if domain is None else [domain]:
            head = f'{{"domain":{json.dumps(name)},'
            for row in dataset.domain(name)[:left]:
                lists = {key: plain(key, value) for key, value in row.items()}
                sys.stdout.write(head + orjson.dumps(lists, option=orjson.OPT_SERIALIZE_NUMPY)[1:].decode() + "\n")
                left -= 1


def checked_count(count: int) -> int:
    """Checks `--count`, and returns it.

    Raises:
        BeamPrepError: it is negative.
    """
    if count < 0:
        raise BeamPrepError(f"--count is {count}, wanted 0 or more")
    return count


def _number(rows: Dataset, record: int, domain: str | None) -> int:
    if not -len(rows) <= record < len(rows):
        where = rows.path if domain is None else f"domain {domain!r} of {rows.path}"
        raise BeamPrepError(f"no record {record}: {where} has {len(rows):,}, numbered 0 to {len(rows) - 1}")
    return record % len(rows)


def _totals(dataset: Dataset, marks: bool) -> Text:
    """The totals of the entire output."""
    manifest, totals = dataset.manifest, dataset.manifest["totals"]
    shards = len(manifest["shards"])
    text = Text()
    text.append(str(dataset.path), "bold")
    text.append(
        f": {totals['rows']:,} rows, {sum(totals['tokens'].values()):,} tokens, "
        f"{shards:,} shard{'s' * (shards != 1)} ({', '.join(manifest['formats'])}), {len(dataset.domains):,} "
        f"domain{'s' * (len(dataset.domains) != 1)}\n"
    )
    labels = [column.shifted for column in dataset.schema if column.role == "labels"]
    text.append(f"{columns_line(dataset.columns, any(labels) if labels else None)}\n")
    ids_of = {column.name: column.of for column in dataset.schema}
    for name, trained in totals["trained"].items():
        share = percent(trained, totals["tokens"][ids_of[name]])
        text.append(f"{name}: {trained:,} trained tokens ({share} of {ids_of[name]})\n")
    if "chunks" in totals:
        text.append(f"chunks: {_chunks(totals['chunks'])}\n")
    if "packing" in totals:
        text.append(f"packing: {_packing(totals['packing'])}\n")
    if dataset.tokenizer is None:
        text.append("no tokenizer is kept in the output: tokens are shown as ids\n")
    return text.append_text(legend(marks))


def columns_line(names: Iterable[str], shifted: bool | None) -> str:
    """The names of the columns, and whether labels are shifted; None: there are no labels."""
    labels = {None: "nothing is shifted", True: "labels: shifted by one", False: "labels: unshifted"}[shifted]
    return f"columns: {', '.join(names)}; {labels}"


def _chunks(stats: Mapping[str, int]) -> str:
    bare, again = stats["chunks_untrained"], stats["tokens_repeated"]
    return ", ".join(
        [
            f"{stats['rows']:,} documents in {stats['chunks']:,} chunks",
            f"{stats['rows_split']:,} split",
            *([f"{again:,} tokens repeated"] if again else []),
            *([f"{bare:,} without a trained token, left out"] if bare else []),
        ]
    )


def _packing(stats: Mapping[str, Any]) -> str:
    lost = {"cut": stats["rows_cut"], "split": stats["rows_split"]}
    bare = stats.get("packs_untrained", 0)  # outputs of earlier versions do not say
    return ", ".join(
        [
            f"{stats['rows']:,} documents in {stats['packs']:,} rows of {stats['capacity']:,} tokens at most",
            f"{stats['fill_rate']:.1%} full",
            *(f"{count:,} {what}" for what, count in lost.items() if count),
            *([f"{bare:,} row{'s' * (bare != 1)} without a trained token"] if bare else []),
        ]
    )
