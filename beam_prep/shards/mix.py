"""A mix: how many tokens of each domain are written, and which rows these are."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from beam_prep.data.ragged import Array
from beam_prep.errors import RunError


@dataclass(frozen=True, slots=True)
class DomainMix:
    """How much of a domain is written: one of tokens, share and epochs.

    >>> mix = {"math": bp.DomainMix(tokens=2e9), "web": bp.DomainMix(share=0.3), "code": bp.DomainMix(epochs=2)}
    >>> compose = bp.Compose(shuffle=17, mix=tuple(mix.items()))

    Attributes:
        tokens: a budget.
        share: of all tokens of the output.
        epochs: how often each record is written.
        repeat: with tokens or share: records are repeated where there are too few.
    """

    tokens: float | None = None
    share: float | None = None
    epochs: float | None = None
    repeat: bool = False


MOST_EPOCHS = 1000
"""How often a record is written, at most: a budget that asks for more has a zero too many."""
Mix = tuple[tuple[str, DomainMix], ...]
"""(domain, what is wanted of it)."""


ALL = 2**64 - 1
"""The largest sample key."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The rows of a domain that are written: each of them `copies` times, and some of them once more.

    Attributes:
        copies: of every row.
        most: of one more copy, the rows whose sample key is not greater; None: no row.
    """

    copies: int = 1
    most: int | None = None


def budgets(mix: Mix, there: Mapping[str, int]) -> dict[str, int]:
    """Domain to the tokens that are wanted of it, for the domains of a mix.

    Domains that the mix does not name are written whole. Shares are of all that is written: what is wanted as tokens or
    epochs, and whole domains, is what the shares leave. If shares are all that there is, the whole is as large as the
    domain that is the first to run out allows; of those that may be repeated none is.

    Args:
        mix: what is wanted.
        there: domain to the tokens that it has.

    Raises:
        RunError: a domain is not there, has too few tokens and is not to be repeated, or is to be repeated more than
            `MOST_EPOCHS` times; or the shares leave nothing for the others, or something that no other fills.
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
                f"lower them: a record is written up to {MOST_EPOCHS:,} times"
            )
    return {domain: found[domain] for domain in wanted}


def _exact(number: float | None) -> Fraction:
    return Fraction(str(number))


def cutoff(keys: Array, tokens: Array, wanted: int) -> int | None:
    """The sample key of the last row that is taken: by rising key, rows are taken until they have the tokens wanted.

    Args:
        keys, tokens: uint64 and int64 [rows].
        wanted: tokens; None of 0.
    """
    if wanted <= 0 or not len(keys):
        return None
    order = np.argsort(keys, kind="stable")
    place = min(int(np.searchsorted(np.cumsum(tokens[order]), wanted)), len(order) - 1)
    return int(keys[order[place]])


@dataclass(frozen=True, slots=True)
class MixedDomain:
    """What a mix takes of a domain.

    Attributes:
        domain: its name.
        wanted, tokens: tokens that were wanted, and that are written.
        there, records: records that there are, and of which any is written.
        rows: that are written: a record that is repeated is one row more each time.
    """

    domain: str
    wanted: int
    tokens: int
    there: int
    records: int
    rows: int

    def as_dict(self) -> dict[str, int]:
        """As a manifest has it."""
        return {"wanted_tokens": self.wanted, "tokens": self.tokens, "records": self.records, "rows": self.rows}


def mix_lines(manifest: Mapping[str, Any]) -> list[str]:
    """What a mix wanted and got of each domain, by a manifest, a line each."""
    return [
        f"mix of {domain!r}: {found['tokens']:,} tokens, {found['wanted_tokens']:,} wanted; "
        f"{found['records']:,} records in {found['rows']:,} rows"
        for domain, found in manifest.get("mix", {}).items()
    ]


NOT_SAMPLED = "not_sampled"
"""The reason for which a mix leaves records out."""
