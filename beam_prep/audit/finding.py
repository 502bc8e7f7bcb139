"""A finding of an audit, and the records in which it was seen."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from beam_prep.sample.sample import Example, Part, Sample


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    Attributes:
        name: what it is called in docs/audit.md.
        says: a sentence.
        count: how often it was seen in the sample.
        of: what was counted: "records", "messages" ...
        records: in how many records of the sample.
        tokens: tokens of the sample that are at stake: lost, wrongly trained, or learnt from with a fault.
        mend: what to change, if possible a line of the config.
        example: the first record of the sample in which it was seen; None: it is about the config or the template.
    """

    name: str
    says: str
    count: int
    of: str
    records: int
    tokens: int
    mend: str
    example: Example | None = None

    def as_json(self, all_tokens: int) -> dict[str, Any]:
        """As it stands in the JSON of an audit; `all_tokens`: of the sample."""
        return {**asdict(self), "share_of_tokens": round(min(1.0, self.tokens / max(1, all_tokens)), 6)}


@dataclass(slots=True)
class Hits:
    """Collects where something was seen.

    Attributes:
        sample: the sample.
        of: what is counted.
    """

    sample: Sample
    of: str = "records"
    count: int = 0
    tokens: float = 0
    example: Example | None = None
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def add(self, part: Part, line: int, text: str = "", tokens: float | None = None) -> None:
        """Counts one.

        Args:
            part, line: the record.
            text: what was found, for the example.
            tokens: at stake; None: all of the record, once.
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
        """In how many records it was seen."""
        return len(self._seen)

    @property
    def told(self) -> str:
        """The count in words: `1 record`, `2,000 texts`."""
        return f"{self.count:,} {self.of.removesuffix('s') if self.count == 1 else self.of}"

    def finding(self, name: str, says: str, mend: str, at_least: float = 0) -> Iterator[Finding]:
        """The finding, if a larger share of the sample's records than `at_least` has it."""
        if self.records > at_least * max(1, self.sample.count):
            yield Finding(name, says, self.count, self.of, self.records, round(self.tokens), mend, self.example)
