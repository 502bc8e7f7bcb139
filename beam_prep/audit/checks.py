"""The list of all checks of an audit."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from beam_prep.audit import of_records, of_tokens
from beam_prep.audit.finding import Finding
from beam_prep.sample.sample import Sample


class Check(NamedTuple):
    """A check of a sample.

    Attributes:
        find: sample -> findings.
        at_start: a run makes this check on its first records: a few records are enough, and it costs little.
    """

    find: Callable[[Sample], Iterable[Finding]]
    at_start: bool = False


CHECKS = (
    Check(of_records.left_out),
    Check(of_records.fields_not_read),
    Check(of_records.bad_answers),  # a run makes this check on more than its first records
    Check(of_records.duplicates),
    Check(of_records.empty_turns),
    Check(of_records.repeated_turns),
    Check(of_records.control_characters),
    Check(of_records.broken_characters),
    Check(of_records.markup_of_chats, at_start=True),
    Check(of_records.control_tokens),
    Check(of_tokens.prints_date),
    Check(of_tokens.not_written, at_start=True),
    Check(of_tokens.roles_not_in_data, at_start=True),
    Check(of_tokens.roles_not_in_mask),
    Check(of_tokens.answers_not_trained, at_start=True),
    Check(of_tokens.little_trained),
    Check(of_tokens.config_warnings),  # a run prints these by itself
    Check(of_tokens.double_bos, at_start=True),
    Check(of_tokens.no_bos),
    Check(of_tokens.roles_without_end, at_start=True),
    Check(of_tokens.no_end),  # documents may have no end on purpose
    Check(of_tokens.double_end),
    Check(of_tokens.cut_off),
    Check(of_tokens.answers_cut),
    Check(of_tokens.prompt_not_prefix),
    Check(of_tokens.answers_in_part),
    Check(of_tokens.unknown_tokens),
)
"""How to add a check: docs/adding.md."""


def findings(sample: Sample, at_start: bool = False) -> list[Finding]:
    """The findings of all checks, those with the most tokens at stake first.

    Args:
        sample: the records.
        at_start: makes only the checks that a run makes at its start.
    """
    found = [finding for check in CHECKS if check.at_start or not at_start for finding in check.find(sample)]
    return sorted(found, key=lambda finding: (-finding.tokens, finding.name))
