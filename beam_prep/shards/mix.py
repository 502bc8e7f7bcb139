"""A mix: how many tokens of each domain are written, and which rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from beam_prep.data.ragged import Array
from beam_prep.errors import RunError


@dataclass(frozen=True, slots=True)
class DomainMix:
    """How much of a domain is written. Give one of tokens, share and epochs.

    >>> mix = {"math": bp.DomainMix(tokens=2e9), "web": bp.DomainMix(share=0.3), "code": bp.DomainMix(epochs=2)}
    >>> compose = bp.Compose(shuffle=17, mix=tuple(mix.items()))

    Attributes:
        tokens: how many tokens are written.
        share: share of all tokens of the output.
        epochs: how often each record is written.
        repeat: with tokens or share: repeats records if the domain has too few.
    """

    tokens: float | None = None
    share: float | None = None
    epochs: float | None = None
    repeat: bool = False


MOST_EPOCHS = 1000
"""Most times that a record is written. A budget that needs more probably has a zero too many."""
Mix = tuple[tuple[str, DomainMix], ...]
"""(domain, how much of it is written)."""


ALL = 2**64 - 1
"""The largest sample key."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Which rows of a domain are written: each row `copies` times, and some rows once more.

    Attributes:
        copies: how often every row is written.
        most: rows with a sample key up to this are written once more; None: no row.
    """

    copies: int = 1
    most: int | None = None


def budgets(mix: Mix, there: Mapping[str, int]) -> dict[str, int]:
    """Domain -> tokens to write, for the domains of a mix.

    Domains that the mix does not name are written once, completely. A share is a share of the whole output. Domains
    with tokens or epochs, and domains not named, fill the rest that the shares leave. If every domain has a share, the
    output is as large as the scarcest domain without `repeat` allows.

    Args:
        mix: the mix.
        there: domain -> tokens that it has.

    Raises:
        RunError: a domain has no rows, or too few tokens without `repeat`, or would be repeated more than
            `MOST_EPOCHS` times; or the shares add up to 1 beside other domains, or to less than 1 without any.
    """
    wanted = dict(mix)
    for domain in wanted:
        if not there.get(domain):
            known = ", ".join(repr(name) for name in sorted(there) if there[name])
            raise RunError(f"output.mix: there are no rows of domain {domain!r}; wanted one of {known}")
    found: dict[str, int] = {}
    for domain, each in wanted.items():
        if each.tokens is not None:
            found[domain] = int(_exact(each.tokens))
        elif each.epochs is not None:
            found[domain] = int(_exact(each.epochs) * there[domain])
    fixed = sum(found.values()) + sum(tokens for domain, tokens in there.items() if domain not in wanted)
    shares = {domain: _exact(each.share) for domain, each in wanted.items() if each.share is not None}
    left = 1 - sum(shares.values())
    if shares and left > 0 and not fixed:
        raise RunError(
            f"output.mix: the shares add up to {float(1 - left):g}, and there is no other domain for the rest: "
            "make them add up to 1"
        )
    if shares and left == 0 and fixed:
        raise RunError(
            f"output.mix: the shares add up to 1, which leaves nothing for the other domains, of {fixed:,} tokens: "
            "lower the shares, or give all domains a share"
        )
    if shares:
        limits = {domain: there[domain] / share for domain, share in shares.items()}
        scarce = [limit for domain, limit in limits.items() if not wanted[domain].repeat]
        total = fixed / left if left else min(scarce) if scarce else max(limits.values())
        found |= {domain: int(share * total) for domain, share in shares.items()}
    for domain, tokens in found.items():
        if tokens > there[domain] and not wanted[domain].repeat and wanted[domain].epochs is None:
            raise RunError(
                f"output.mix: {tokens:,} tokens of domain {domain!r} are wanted, {there[domain]:,} are there: "
                'lower them, or repeat records: "repeat": true'
            )
        if tokens > MOST_EPOCHS * there[domain]:
            raise RunError(
                f"output.mix: {tokens:,} tokens of domain {domain!r} are wanted, {there[domain]:,} are there: "
                f"lower them, because a record is written at most {MOST_EPOCHS:,} times"
            )
    return {domain: found[domain] for domain in wanted}


def _exact(number: float | None) -> Fraction:
    return Fraction(str(number))


def cutoff(keys: Array, tokens: Array, wanted: int) -> int | None:
    """The sample key of the last row that is written. Rows are drawn by rising key until they have the wanted tokens.

    Args:
        keys, tokens: uint64 and int64 [rows], the sample key and the tokens of each row.
        wanted: tokens; for 0 the result is None.
    """
    if wanted <= 0 or not len(keys):
        return None
    order = np.argsort(keys, kind="stable")
    place = min(int(np.searchsorted(np.cumsum(tokens[order]), wanted)), len(order) - 1)
    return int(keys[order[place]])


@dataclass(frozen=True, slots=True)
class MixedDomain:
    """How much of a domain a mix writes.

    Attributes:
        domain: its name.
        wanted, tokens: tokens that were wanted, and tokens that are written.
        there, records: records that the domain has, and records that are written at least once.
        rows: rows that are written. A record that is written n times counts n times.
    """

    domain: str
    wanted: int
    tokens: int
    there: int
    records: int
    rows: int

    def as_dict(self) -> dict[str, int]:
        """The entry of the domain in the manifest."""
        return {"wanted_tokens": self.wanted, "tokens": self.tokens, "records": self.records, "rows": self.rows}


def mix_lines(manifest: Mapping[str, Any]) -> list[str]:
    """A line for each domain of a mix: tokens wanted and written, from a manifest."""
    return [
        f"mix of {domain!r}: {found['tokens']:,} tokens, {found['wanted_tokens']:,} wanted; "
        f"{found['records']:,} records in {found['rows']:,} rows"
        for domain, found in manifest.get("mix", {}).items()
    ]


NOT_SAMPLED = "not_sampled"
"""The drop reason of records that a mix leaves out."""
