"""The examples in the docstrings of public names give what they say."""

import doctest

import apache_beam as beam
import numpy as np
import pytest

import beam_prep as bp
from tests.conftest import ROOT

WITH_EXAMPLE = [name for name in bp.__all__ if ">>>" in (getattr(bp, name).__doc__ or "")]


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_the_example_of_a_public_name_is_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names = {"bp": bp, "np": np, "beam": beam}
    example = doctest.DocTestParser().get_doctest(getattr(bp, name).__doc__, names, name, None, 0)
    said: list[str] = []
    assert doctest.DocTestRunner().run(example, out=said.append).failed == 0, "".join(said)


def test_the_names_of_data_have_examples() -> None:
    data = {"Batch", "Column", "Layout", "Output", "Pad", "Padding", "Prepare", "Ragged", "RoleMask", "Section"}
    assert data | {"Segments", "TextRules"} <= {*WITH_EXAMPLE}
