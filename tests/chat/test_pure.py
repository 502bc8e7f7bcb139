"""What a record becomes is a function of template, settings and the record alone: never of earlier records."""

import contextlib
import functools
import random
import re
import runpy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from beam_prep.chat.template import ChatTemplate
from beam_prep.data.block import Reject
from beam_prep.errors import TokenizerError
from tests.conftest import shared

Record = dict[str, Any]
DATE = "2026-11-26"
CONTROL = re.compile(r"<\|[^|<>{}\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?s>|<(?:start|end)_of_turn>|\[/?[A-Z_]{3,20}\]")


def variables_of(record: Record) -> Record:
    return {name: value for name, value in record.items() if name == "tools"}


def outcome(template: ChatTemplate, record: Record) -> Any:
    """All that comes of a record."""
    try:
        rendered = template.render(record["m"], **variables_of(record))
    except Reject as error:
        return str(error)
    return rendered.text, [(turn.spans, turn.reason) for turn in rendered.turns], rendered.not_rendered


def assert_pure(made: Callable[[], ChatTemplate], records: Sequence[Record], name: str) -> None:
    """All records in three orders, each time with a new template, and four of them alone."""
    forwards = list(range(len(records)))
    shuffled = random.Random(7).sample(forwards, len(forwards))
    found: dict[int, Any] = {}
    for order in (forwards, forwards[::-1], shuffled, *([k] for k in shuffled[:4])):
        template = made()
        for k in order:
            outcome_here = outcome(template, records[k])
            assert outcome_here == found.setdefault(k, outcome_here), f"{name}: record {k} of the order {order}"


def assert_as_prefixes_show(template: ChatTemplate, records: Sequence[Record], name: str) -> None:
    """No text differs from the plain rendering, no turn from what renderings of prefixes show."""
    for k, record in enumerate(records):
        with contextlib.suppress(Reject):
            rendered = template.render(record["m"], **variables_of(record))
            assert not template.differs(rendered, record["m"], **variables_of(record)), f"{name}: record {k}"


@pytest.mark.parametrize(
    ("first", "every"), [(7, 24), *(pytest.param(part, 6, marks=pytest.mark.long) for part in range(6))]
)
def test_templates_of_models(first: int, every: int) -> None:
    folder = shared("templates")
    given = runpy.run_path(str(folder / "conversations.py"))["SH"].values()
    records = [each if isinstance(each, dict) else {"m": each} for each in given]
    assert len(records) == 16
    paths = sorted(folder.rglob("*.jinja"))[first::every]
    for path in paths:
        source = path.read_text(encoding="utf-8")
        tokens = sorted({*CONTROL.findall(source), "<s>", "</s>"})
        made = functools.partial(ChatTemplate, source, {"bos_token": "<s>", "eos_token": "</s>"}, tokens, DATE)
        with contextlib.suppress(TokenizerError):  # jinja does not compile some
            assert_pure(made, records, path.name)
            assert_as_prefixes_show(made(), records, path.name)
    assert len(paths) >= 100 // every
