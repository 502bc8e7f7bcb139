"""Conversations of one block: rendered by plans, by jinja, or rejected."""

import pytest

from beam_prep.core.chat.recorded import plans
from beam_prep.core.chat.template import ChatTemplate
from beam_prep.core.data.schema import Output, Section
from beam_prep.core.pieces.apply import apply_template
from beam_prep.core.pieces.voice import Voice
from beam_prep.core.reading.filters import map_records
from beam_prep.core.reading.records import Record
from tests.core.chat.test_conversation import CONTROLS, TOKENS, say, talk
from tests.core.chat.trained import CHATML
from tests.core.mask_judge import records


def test_a_conversation_that_cannot_be_encoded_leaves_nothing_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SIGHTINGS_BEFORE_TRACE", 1)
    weighted = [say("user", "q"), say("assistant", "a", weight=1)]  # which no plan's table of segments fits
    rows = [{"messages": talk("q", "a")}, {"messages": talk("q", "torn")}, {"messages": weighted}]

    def tear(row: Record) -> Record:
        return {"messages": talk("q", "\ud800")} if row["messages"][1]["content"] == "torn" else row

    voice = Voice(ChatTemplate(CHATML, TOKENS, plans=True), CONTROLS, TOKENS["bos_token"], TOKENS["eos_token"])
    output = Output("sequence", "ids", (Section("messages", "$last", "conversation"),), "loss_mask")
    rendered = apply_template(map_records(records(rows), tear), (output,), voice)
    assert rendered.line.tolist() == [0, 2]
    assert rendered.pieces["sequence"].borders.tolist() == [0, 1, 3]  # the answer; it again for its weight
    assert rendered.ledger.outcomes == [("rejected", "bad_text")]
