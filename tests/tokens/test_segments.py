"""Messages and tokens by role = what one counts who looks at every token of every row."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from beam_prep.tokens.batch import NAME_LIMIT, Batch, RoleCounts, Roles
from beam_prep.tokens.rows import RoleMask, build_mask, drop_rows_without_loss, truncate
from beam_prep.tokens.tokenize import tokenize
from tests.chars import Chars, messages, render, row

ROLES = ("user", "assistant", "tool", "gpt")
RULES = {"assistant": "train", "user": "mask", "tool": "last"}

chats = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(ROLES), "content": st.text("ab", max_size=4)}, optional={"train": st.booleans()}
    ),
    max_size=5,
)


def counted(rows: list[Any], outputs: list[Any], length: int, mode: Any) -> Batch:
    """What is left of rows, in their masks, after cutting."""
    whole = build_mask(tokenize(render(rows, *outputs), Chars(), ord("^")), RoleMask(RULES))  # type: ignore[arg-type]
    return drop_rows_without_loss(truncate(whole, length, mode), "drop")


def by_hand(rows: list[Any], outputs: list[Any], left: Batch, length: int, mode: str) -> dict[str, tuple[int, ...]]:
    """Role -> (messages, tokens, trained), message by message and token by token."""
    found: dict[str, list[int]] = {}
    alive = left.line.tolist()
    rendered = [line for line in range(len(rows)) if _is_rendered(rows[line], outputs)]
    for line in rendered:
        for output in outputs:
            owners: list[str | None] = [None]  # the BOS
            for message in rows[line][output.sections[0].field]:
                found.setdefault(message["role"], [0, 0, 0])[0] += 1
                owners += [message["role"]] * len(f"{message['role'][0]}:{message['content']};")
            if line not in alive:
                continue
            owners = owners[:length] if mode == "keep_start" else owners[-length:]
            mask = np.asarray(left[f"{output.name}_mask"][alive.index(line)]).tolist()
            for owner, trained in zip(owners, mask, strict=True):
                if owner is not None:
                    found[owner][1] += 1
                    found[owner][2] += trained
    return {role: tuple(counts) for role, counts in found.items()}


def _is_rendered(record: Any, outputs: list[Any]) -> bool:
    return all(record[output.sections[0].field] for output in outputs)


@given(
    st.lists(st.fixed_dictionaries({"one": chats, "other": chats}), min_size=1, max_size=6),
    st.integers(1, 2),
    st.integers(1, 20),
    st.sampled_from(["keep_start", "keep_end"]),
)
def test_counts_are_those_of_every_message_and_token(rows: list[Any], outputs: int, length: int, mode: str) -> None:
    made = [row(messages(name), name=name, mask=f"{name}_mask") for name in ("one", "other")[:outputs]]
    left = counted(rows, made, length, mode)
    counts = left.roles.count(left.line)
    assert by_role(counts) == by_hand(rows, made, left, length, mode)
    # What a cut at any line counts is what the lines before it have.
    for cut in range(len(rows) + 1):
        head = left.take(left.line < cut)
        few = head.roles.count(head.line)
        inside = few.line < cut
        same = RoleCounts(few.names, few.line[inside], few.role[inside], few.counts[:, inside])
        assert counts.sums(cut) == same.sums(cut)
    trained = sum(int(left[output.mask_name or ""].flat.sum()) for output in made)
    assert counts.sums(len(rows))["trained"].total() == trained


def by_role(counts: RoleCounts) -> dict[str, tuple[int, ...]]:
    """Role -> messages, tokens and trained tokens."""
    found = counts.sums(1 << 31)
    return {role: tuple(each[role] for each in found.values()) for role, count in found["messages"].items() if count}


def test_a_block_in_which_every_message_has_a_role_of_its_own_is_counted_too() -> None:
    count = 3_000
    line = np.arange(count)
    roles = Roles(tuple(map(str, line)), line, line)
    sums = by_role(roles.count(line[:0].astype(np.int32)))
    assert sums == {str(place): (1, 0, 0) for place in line}


def test_names_fit_a_receipt() -> None:
    rows = [{"m": [{"role": "x" * 1000 + end, "content": ""}]} for end in "ab"]
    batch = tokenize(render(rows, row(messages("m")), template="{{ messages[0].content }}!"), Chars(), None)
    assert by_role(batch.roles.count(batch.line)) == {"x" * NAME_LIMIT: (2, 0, 0)}
    place = np.zeros(1, np.int64)
    half = Roles(("\ud800",), place, place)  # a step of the user's own may make it
    assert by_role(half.count(batch.line)) == {"\\ud800": (1, 0, 0)}
