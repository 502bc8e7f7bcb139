"""An audit finds each planted fault, names a record that has it, and finds nothing in the clean corpus."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from beam_prep.audit import Audit, audit
from beam_prep.config import PipelineConfig
from tests.audit.conftest import write
from tests.audit.faults import FAULTS, Fault, config, planted
from tests.conftest import ROOT, records_of

CLEAN = records_of(ROOT / "examples/data/chat.jsonl")


def run(folder: Path, tokenizer: str, lines: list[str], given: dict[str, Any]) -> Audit:
    return audit(write(folder, lines), PipelineConfig.from_dict(given), tokenizer)[None]


def line_at(path: str, offset: int) -> str:
    data = Path(path).read_bytes()
    data = gzip.decompress(data) if path.endswith(".gz") else data
    assert offset == 0 or data[offset - 1 : offset] == b"\n"
    return data[offset : data.index(b"\n", offset)].decode("utf-8")


def advised(mend: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """The config with what an advice says; None: it is no part of a config, or leaves a value open (`...`)."""
    section = re.match('"([a-z_]+)": (?={)', mend)
    if section is None:
        return None
    try:
        values, _ = json.JSONDecoder().raw_decode(mend, section.end())
    except ValueError:
        return None
    made = json.loads(json.dumps(given))
    part = made.setdefault(section[1], {})
    if other := re.search(r"in place of '(\w+)'", mend):
        part.pop(other[1])
    part.update(values)
    return made


ADVISED = {
    *("role_not_in_data", "role_not_in_mask", "answers_not_trained", "double_bos", "no_bos", "cut_off", "answers_cut"),
    *("control_tokens", "date_wanted", "duplicates"),
}
"""Findings whose advice is a part of a config, whole."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_and_its_advice_mends_it(fault: Fault, tmp_path: Path, with_bos: str) -> None:
    lines, changed = planted(fault, CLEAN)
    found = run(tmp_path, with_bos, lines, fault.config).findings
    named = [finding for finding in found if finding.name == fault.finding]
    assert named, [finding.name for finding in found]
    example = named[0].example
    assert fault.says in f"{named[0].says} {named[0].mend} {'' if example is None else example.text}"
    assert named[0].mend
    assert named[0].tokens > 0
    if changed and fault.finding != "duplicates":
        assert example is not None
        assert line_at(example.file, example.offset) in {lines[number] for number in changed}
        if fault.finding not in ("answers_cut", "dropped_empty", "cut_off"):
            assert named[0].records == len(changed)
    if fault.finding in ADVISED:
        mended: dict[str, Any] | None = fault.config
        for finding in named:
            assert mended is not None
            mended = advised(finding.mend, mended)
            assert mended is not None, finding.mend
        again = run(tmp_path, with_bos, lines, mended or {})
        assert fault.finding not in {each.name for each in again.findings}, mended
        assert again.sample.kept[2] > 0


def test_nothing_is_found_in_a_clean_corpus(tmp_path: Path, with_bos: str) -> None:
    found = run(tmp_path, with_bos, [json.dumps(record) for record in CLEAN], config())
    assert found.findings == ()
    assert found.sample.count == len(CLEAN)
    assert found.sample.drawn.all
