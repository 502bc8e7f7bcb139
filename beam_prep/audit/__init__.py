"""`beam-prep audit FILES -c C --tokenizer_path T`: finds problems of data and config on a sample, before a run.

`Finding` is a problem; `Hits` collects the records that have it.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from beam_prep.sample import Example, Part, Sample


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of data, config or template.

    Attributes:
        name: its name in docs/audit.md.
        says: a sentence that describes it.
        count: how often it occurs in the sample.
        of: what is counted: "records", "messages" ...
        records: how many records of the sample have it.
        tokens: tokens of the sample that are at stake: lost, wrongly trained, or trained with a fault.
        mend: what to change, if possible a line of the config.
        example: the first record of the sample that has it; None for a problem of the config or the template.
    """

    name: str
    says: str
    count: int
    of: str
    records: int
    tokens: int
    mend: str
    example: Example | None = None

    def share_of(self, all_tokens: int) -> float:
        """The share of all tokens of the sample that is at stake."""
        return min(1.0, self.tokens / max(1, all_tokens))

    def as_json(self, all_tokens: int) -> dict[str, Any]:
        """The finding in the JSON of an audit; `all_tokens`: the tokens of the sample."""
        return {**asdict(self), "share_of_tokens": round(self.share_of(all_tokens), 6)}


@dataclass(slots=True)
class Hits:
    """Collects the places of one problem.

    Attributes:
        sample: the sample.
        of: what is counted, see `Finding`.
    """

    sample: Sample
    of: str = "records"
    count: int = 0
    tokens: float = 0
    example: Example | None = None
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def add(self, part: Part, line: int, text: str = "", tokens: float | None = None) -> None:
        """Counts one place.

        Args:
            part, line: the record.
            text: the text of the example.
            tokens: tokens at stake; None: all tokens of the record, which count once.
        """
        key = (part.number, line)
        if tokens is None:
            tokens = 0 if key in self._seen else self.sample.tokens_of(part, line)
        self._seen.add(key)
        self.count += 1
        self.tokens += tokens
        if self.example is None:
            self.example = self.sample.example(part, line, text)

    @property
    def records(self) -> int:
        """How many records have the problem."""
        return len(self._seen)

    @property
    def told(self) -> str:
        """The count in words: `1 record`, `2,000 texts`."""
        return f"{self.count:,} {self.of.removesuffix('s') if self.count == 1 else self.of}"

    def finding(self, name: str, says: str, mend: str, at_least: float = 0) -> Iterator[Finding]:
        """The finding, if more than the share `at_least` of the sample's records has the problem."""
        if self.records > at_least * max(1, self.sample.count):
            yield Finding(name, says, self.count, self.of, self.records, round(self.tokens), mend, self.example)
