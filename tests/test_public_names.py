"""What `import beam_prep as bp` offers."""

import inspect

import apache_beam as beam
import pytest

import beam_prep as bp


@pytest.mark.parametrize("name", bp.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(bp, name))
    assert name in dir(bp)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Shred'"):
        _ = bp.Shred


def test_every_verb_is_a_transform() -> None:
    verbs = "ReadJSONL FilterByChars FilterRecords MapRecords ApplyTemplate Tokenize BuildMask Truncate Shift Shard"
    assert all(issubclass(getattr(bp, name), beam.PTransform) for name in verbs.split())
