"""The prompt of a preference row that has none of its own."""

from collections.abc import Sequence

from beam_prep.core.data.block import Reject
from beam_prep.core.data.schema import Output
from beam_prep.core.reading.json_line import describe
from beam_prep.core.reading.records import Record


def prompt_field(outputs: Sequence[Output]) -> str:
    """The field of the prompt."""
    return outputs[0].sections[0].field


def sides_of(outputs: Sequence[Output]) -> list[str]:
    """The fields of both sides."""
    return [output.sections[-1].field for output in outputs[:2]]


def with_prompt(record: Record, outputs: Sequence[Output]) -> Record:
    """The longest common beginning of both sides of a preference row, messages or characters, as its prompt.

    As TRL's extract_prompt: where one side is the beginning of the other, the last shared element stays out of the
    prompt; a prompt of characters steps back over a final space. A prompt that is text beside sides that are messages
    (UltraFeedback has these) only repeats what the sides begin with, and is not read.
    """
    prompt, names = prompt_field(outputs), sides_of(outputs)
    one, other = (record.get(name) for name in names)
    if not one or not other or not isinstance(one, str | list) or not isinstance(other, str | list):
        return record  # the checks of the sections reject it
    given = record.get(prompt)
    if given is not None and not (isinstance(given, str) and isinstance(one, list) and isinstance(other, list)):
        return record
    if type(one) is not type(other):
        raise Reject("wrong_type", f"{names[0]!r} is {describe(one)}, {names[1]!r} is {describe(other)}")
    if one == other:
        raise Reject("equal_sides", f"{names[0]!r} and {names[1]!r} are equal, wanted a difference")
    size = min(len(one), len(other))
    at = next((place for place in range(size) if one[place] != other[place]), size - 1)
    if isinstance(one, str) and at and one[at - 1] == " ":
        at -= 1
    return {**record, prompt: one[:at], names[0]: one[at:], names[1]: other[at:]}
