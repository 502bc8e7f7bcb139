"""Decontaminate: records that share words with evaluation data are dropped or marked."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

from beam_prep.core.reading.decontaminate import IndexSource, Mode, decontaminate
from beam_prep.core.reading.records import Records
from beam_prep.storage.references import read_references
from beam_prep.transforms.block_step import BlockStep


@dataclasses.dataclass(eq=False)
class Decontaminate(BlockStep):
    """`Records` -> `Records`: a record that shares an n-gram of words with evaluation data is dropped or marked.

    See docs/decontaminate.md for what a word is. The evaluation data is read when the step is made, and is a part of
    the pipeline: a `Pipeline` with `preprocessing.decontaminate` sends it to the workers as a file.

    Attributes:
        against: paths and globs of the evaluation data.
        field: the fields of its records that are looked for; None: all texts.
        fields: the fields of the records that are looked at; None: all texts.
        ngram: words of an n-gram, 1 or more.
        mode: `drop`: such records are dropped (`contaminated`); `mark`: they are kept, counted and listed.

    Raises:
        InputError: a file of the evaluation data cannot be read, or has nothing to look for.

    >>> block = bp.testing.records([{"text": "THERE is - a particular Silence"}, {"text": "There is silence"}])
    >>> step = bp.Decontaminate("examples/data/text.jsonl", field="text", ngram=5)
    >>> bp.testing.to_rows(step.step()(block))
    [{'text': 'There is silence'}]
    """

    against: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | IndexSource
    field: str | Sequence[str] | None = None
    fields: str | Sequence[str] | None = None
    ngram: int = 13
    mode: Mode = "drop"

    gives = Records

    def __post_init__(self) -> None:
        super().__init__()
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode is {self.mode!r}, wanted {' or '.join(get_args(Mode))}")
        if self.ngram < 1:
            raise ValueError(f"ngram is {self.ngram}, wanted 1 word or more")
        self.field, self.fields = _names(self.field), _names(self.fields)
        if isinstance(self.against, (str, os.PathLike)):
            self.against = (self.against,)
        if isinstance(self.against, Sequence):
            paths = [os.fspath(each) for each in self.against]
            self._source: IndexSource = read_references(paths, self.field, self.ngram).index
        else:
            self._source = self.against

    def step(self) -> Callable[[Records], Records]:
        fields = None if self.fields is None else tuple(self.fields)
        return partial(decontaminate, references=self._source, fields=fields, mode=self.mode)


def _names(names: str | Sequence[str] | None) -> tuple[str, ...] | None:
    return (names,) if isinstance(names, str) else None if names is None else tuple(names)
