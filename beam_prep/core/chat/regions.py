"""The region of each message: the range that a template wrote for it, in characters or in pieces."""

from collections.abc import Callable, Sequence

NO_MESSAGE = -1
"""In a mark: no loop over messages is under way."""

Region = tuple[int, int]


def regions_of(
    marks: Sequence[tuple[int, int]],
    messages: int,
    end: int,
    has_text: Callable[[int, int], bool],
    is_token: Callable[[int], bool],
) -> tuple[list[Region | None], bool]:
    """The regions of the messages, from the marks that the loops of a template left.

    What was written from one mark to the next belongs to the message of the first. What was written before all
    messages may be the first one's (a system message often is written before the loop): that is a guess.

    Args:
        marks: (characters or pieces written, message) whenever a loop comes to a message, or ends.
        messages: how many there are.
        end: of the rendering, in the unit of the marks.
        has_text: gives True if there is any text between two places.
        is_token: gives True if nothing, or one special token, is all that follows a place.

    Returns:
        Per message its region, None where it has none or its text is in several places; and whether the first one is
        a guess.
    """
    regions: list[Region | None] = [None] * messages
    twice = set()
    stops = [start for start, _ in marks[1:]] + [end]
    for (start, message), stop in zip(marks, stops, strict=False):
        if message == NO_MESSAGE or not has_text(start, stop):
            continue
        before = regions[message]
        if before is not None and before[1] == start:
            start = before[0]
        elif before is not None:
            twice.add(message)
        regions[message] = (start, stop)
    if marks and is_token(marks[-1][0]):  # an EOS after the loop ends the last message
        regions = [(r[0], end) if r is not None and r[1] == marks[-1][0] else r for r in regions]
    regions = [None if message in twice else region for message, region in enumerate(regions)]
    first = min((region[0] for region in regions if region is not None), default=end if len(regions) == 1 else 0)
    guessed = bool(regions) and regions[0] is None and has_text(0, first)
    if guessed:
        regions[0] = (0, first)
    return regions, guessed
