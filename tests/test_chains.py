"""Chains of steps: each line is one row or has its outcome, whatever the steps."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from beam_prep.chat.apply import apply_template
from beam_prep.chat.chat_format import ChatFormat
from beam_prep.config import FORMAT_NAMES
from beam_prep.data.block import ALIVE, Block, InputFile
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Output, Section
from beam_prep.errors import RunError
from beam_prep.reading.adapters import adapt_records, adapter, filter_by_chars, filter_records, map_records
from beam_prep.reading.decontaminate import Index, Mode, decontaminate, index_of
from beam_prep.reading.keys import Normalize, keep_fields, key_records
from beam_prep.reading.records import RawBlock, Record, Records, parse
from beam_prep.reading.verdicts import FieldUse, count_bad_answers
from beam_prep.shards.layout import add_metadata, finalize_columns
from beam_prep.tokens.batch import Batch, in_domain
from beam_prep.tokens.rows import RoleMask, TruncationMode, build_mask, pad, split_prompt, to_labels, truncate
from beam_prep.tokens.tokenize import from_tokens, tokenize
from beam_prep.tokens.tokenizer import Tokenizer
from beam_prep.transforms.steps import BlockCoder
from tests.chat.trained import CHATML, TOKENS, fresh
from tests.conftest import ROOT, Patch, Run, chat_config, says

TOKENIZER = Tokenizer.load(ROOT / "examples" / "tokenizer")
VOICE = ChatFormat(fresh(CHATML, TOKENS))

TEXT = Output("sequence", "ids", (Section("text", "train"),), "loss_mask")
CHAT = Output("sequence", "ids", (Section("messages", "$role", "conversation"),), "loss_mask")
EACH = Output("sequence", "ids", (Section("messages", "$role", "message"),), "loss_mask")
BOTH = Output("sequence", "ids", (Section("text", "mask"), Section("messages", "$role", "message")), "loss_mask")


def read(lines: list[bytes]) -> Records:
    data = b"".join(line + b"\n" for line in lines)
    raw = RawBlock(0, len(data), 0, data, b"")
    return parse(raw, raw.origin(0, InputFile("x.jsonl", len(data), 0.0), 65536))


def pick(record: Record) -> bool | str:
    answers: list[bool | str] = [True, True, False, "refused"]
    return answers[len(json.dumps(record)) % 4]


def louder(record: Record) -> Record | str:
    if len(json.dumps(record)) % 5 == 0:
        return "refused"
    text = record.get("text")
    return {**record, "text": text.upper()} if isinstance(text, str) else record


def references(ngram: int, text: str) -> Index:
    return index_of([("eval.jsonl", [1], [[text]])], ngram)


REFERENCES = [references(1, "hello, b!"), references(2, "LONG long"), references(1, "四字の語 a")]
SPANS = st.sampled_from([(0, 5), (2, 9), (3, 3), (0, 0), (20, 30)])
FIELDS = st.sampled_from([("text",), ("messages",), ("text", "messages"), ("messages", "text"), ("other",), ("id",)])
KEYS = st.tuples(
    st.booleans(), st.sampled_from([None, "id", "text"]), st.booleans(), FIELDS, st.sampled_from(get_args(Normalize))
)
MODES: tuple[TruncationMode, ...] = ("keep_start", "keep_end", "drop")
Step = Callable[[Any], Any]
ON_RECORDS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(SPANS, FIELDS).map(lambda given: lambda records: filter_by_chars(records, *given[0], given[1])),
    st.sampled_from([lambda records: filter_records(records, pick), lambda records: map_records(records, louder)]),
    st.sampled_from([lambda records: keep_fields(records, {"id": "string"})]),
    st.just(lambda records: count_bad_answers(records, FieldUse())),
    KEYS.map(lambda keys: lambda records: key_records(records, *keys)),
    st.sampled_from(["sharegpt", "alpaca"]).map(lambda name: lambda records: adapt_records(records, adapter(name))),
    st.tuples(st.sampled_from(REFERENCES), FIELDS, st.sampled_from(get_args(Mode))).map(
        lambda given: lambda records: decontaminate(records, *given)
    ),
)
ON_BATCHES: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.integers(1, 12), st.sampled_from(MODES)).map(lambda given: lambda batch: truncate(batch, *given)),
    st.sampled_from([lambda batch: batch.drop(batch["sequence"].lengths % 3 == 0, "thirds")]),
    st.sampled_from([lambda batch: batch.reject(batch["sequence"].lengths % 3 == 1, "thirds", "more")]),
    st.sampled_from([lambda batch: in_domain(batch, "math")]),
)
LAST: st.SearchStrategy[Step] = st.one_of(
    st.booleans().map(lambda shift: lambda batch: to_labels(batch, shift)),
    st.just(lambda batch: pad(batch, 4, 0)),
    st.booleans().map(lambda provenance: lambda batch: add_metadata(batch, provenance)),
    st.just(lambda batch: batch),
)

SAID = st.sampled_from(["", "a", "Hello", " b ", "四字の語", "long " * 5, "\u00a0"])
ROLE = st.sampled_from(["user", "assistant"])
MESSAGE = st.fixed_dictionaries({"role": ROLE, "content": SAID})
PLAIN_TEXT = st.fixed_dictionaries({"text": SAID}, optional={"topic": st.sampled_from(["x", "y"])})
PLAIN_CHAT = st.fixed_dictionaries({"messages": st.lists(MESSAGE, min_size=1, max_size=4)})
ODD = st.one_of(
    st.fixed_dictionaries({}, optional={"text": st.sampled_from([None, 3, "", "a b c"]), "messages": st.none()}),
    st.fixed_dictionaries({"messages": st.sampled_from([[], "x", [3], [{"role": "user"}], [{"content": "x"}]])}),
    st.just({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "x"}]}),
    st.fixed_dictionaries({"instruction": st.just("Say"), "output": SAID}),
)
OTHER_LINES = st.sampled_from([b"", b"  ", b"{", b"[1]", b'{"text": "\\ud800"}', b'{"text": 1, "text": 2}'])


@st.composite
def blocks(draw: st.DrawFn) -> list[bytes]:
    kinds: Any = st.sampled_from([PLAIN_TEXT, PLAIN_CHAT, st.one_of(PLAIN_TEXT, PLAIN_CHAT, ODD)])
    records = draw(st.lists(draw(kinds), min_size=1, max_size=8))
    lines = [json.dumps({"id": f"r{number}", **record}).encode() for number, record in enumerate(records)]
    for place, line in draw(st.lists(st.tuples(st.integers(0, 8), OTHER_LINES), max_size=2)):
        lines.insert(place, line)
    return lines


def outcomes(block: Block) -> list[Any]:
    """What became of each line: its row, or why there is none."""
    ledger = block.ledger
    found: list[Any] = [
        "row" if code == ALIVE else (*ledger.outcomes[code - 1], ledger.messages.get(line))
        for line, code in enumerate(ledger.status.tolist())
    ]
    assert [line for line, outcome in enumerate(found) if outcome == "row"] == block.line.tolist()
    digests = {name: values[block.line].tolist() for name, values in ledger.digests.items()}
    return [*found, *sorted(ledger.notes.items()), *sorted(digests.items())]


def content(block: Block) -> Any:
    if isinstance(block, Records):
        return list(map(json.dumps, block.rows))
    if isinstance(block, Batch):
        columns = {name: (rows.to_lists(), rows.flat.dtype) for name, rows in block.columns.items()}
        return columns, block.domain, {name: counts.tolist() for name, counts in block.counters.items()}
    return [list(pieces.texts) for pieces in block.pieces.values()], block.domain  # type: ignore[attr-defined]


@given(
    lines=blocks(),
    before=st.lists(ON_RECORDS, max_size=4),
    output=st.sampled_from([TEXT, CHAT, EACH, BOTH]),
    between=st.lists(ON_BATCHES, max_size=3),
    last=LAST,
    rows_without_loss=st.sampled_from(["keep", "drop", "reject"]),
)
@example(
    lines=[b'{"messages": [{"role": "user", "content": "a"}]}', b'{"messages": [{"role": "user", "content": "b"}]}'],
    before=[lambda records: filter_by_chars(records, 2, 9, ("messages",))],
    output=CHAT,
    between=[],
    last=lambda batch: batch,
    rows_without_loss="keep",
)
def test_no_line_is_lost(
    lines: list[bytes], before: list[Step], output: Output, between: list[Step], last: Step, rows_without_loss: Any
) -> None:
    block: Any = read(lines)
    steps: list[Step] = [
        *before,
        lambda records: apply_template(records, (output,), VOICE, "topic"),
        lambda rendered: tokenize(rendered, TOKENIZER, 1),
        lambda batch: build_mask(batch, RoleMask({"assistant": "train"})),
        *between,
        last,
        lambda batch: finalize_columns(batch, rows_without_loss, {}),
    ]
    for work in steps:
        given = outcomes(block), content(block)
        made = work(block)
        assert (outcomes(block), content(block)) == given  # it may have a second consumer
        block = made
        assert len(outcomes(block)) >= len(block.ledger.status) == len(lines)


SIDES = tuple(
    Output(side, "ids", (Section("prompt", "mask"), Section(side, "train")), f"{side}_mask")
    for side in ("chosen", "rejected")
)
SAID = st.sampled_from(["", "a", "b", "a b", " ", None, 3])


@given(st.lists(st.fixed_dictionaries({"prompt": SAID, "chosen": SAID, "rejected": SAID}), min_size=1, max_size=8))
def test_no_line_of_preference_pairs_is_lost(records: list[Record]) -> None:
    lines = [json.dumps(record).encode() for record in records]
    rendered = apply_template(read(lines), SIDES, VOICE, "topic")
    batch = split_prompt(build_mask(tokenize(rendered, TOKENIZER, 1), RoleMask({})))
    assert len(batch) == np.count_nonzero(batch.ledger.status == ALIVE)
    assert len(batch.ledger.status) == len(lines)
    assert all(rows.lengths.all() for name, rows in batch.columns.items() if name != "prompt_ids")


# Steps of the user's own

LINES = [b'{"text": "one"}', b"", b'{"text": "two"}', b'{"text": "three"}']


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (lambda batch: batch.take(np.array([True, False, True])), r"2 rows .+ 3 lines .+x.jsonl \(byte offset 17\)"),
        (lambda batch: replace(batch, line=batch.line[::-1]), "in another order or twice"),
        (lambda batch: replace(batch, domain=["x"]), "3 rows with 1 of domains"),
        (lambda batch: replace(batch, counters={"cut": np.zeros(2, int)}), "3 rows with 2 of counter 'cut'"),
        (
            lambda batch: replace(batch, columns={**batch.columns, "weights": Ragged.from_lists([[1.0]])}),
            "3 rows with 1 of column 'weights'",
        ),
    ],
)
def test_a_step_on_tokens_that_loses_rows_ends_the_run(lose: Step, message: str) -> None:
    """It says which step found it, and how rows are taken out."""
    batch = build_mask(tokenize(apply_template(read(LINES), (TEXT,), VOICE), TOKENIZER, None), RoleMask())
    steps: list[Step] = [lambda batch: truncate(batch, 4), lambda batch: finalize_columns(batch, "keep", {})]
    for then in steps:
        with pytest.raises(RunError, match=rf"^\w+ was given a block of .*{message}"):
            then(lose(batch))


def test_a_step_on_records_that_loses_rows_ends_the_run() -> None:
    steps: list[Step] = [
        lambda records: map_records(records, louder),
        lambda records: decontaminate(records, REFERENCES[0]),
        lambda records: apply_template(records, (TEXT,), VOICE),
        lambda records: from_tokens(records, TEXT, 100),
    ]
    given = read(LINES)
    for then in steps:
        with pytest.raises(RunError, match=r"^\w+ was given a block of .*1 rows .+ 3 lines"):
            then(replace(given, rows=given.rows[:1], line=given.line[:1]))
        with pytest.raises(RunError, match=r"^\w+ was given a block of .*3 rows with 1 of rows"):
            then(replace(given, rows=[*given.rows][:1]))


# Blocks stay where they are: between the steps of a process none is serialised

ALL_FORMATS = chat_config(True, output={"storage_format": list(FORMAT_NAMES)})


@pytest.fixture
def serialised(monkeypatch: Patch) -> list[str]:
    """Notes whenever a block is encoded by its coder, or pickled by anybody."""
    seen: list[str] = []
    encode, reduce = BlockCoder.encode, Block.__reduce_ex__

    def encodes(self: BlockCoder, value: Block) -> bytes:
        seen.append(f"encode {type(value).__name__}")
        return encode(self, value)

    def reduces(self: Block, protocol: Any) -> Any:
        seen.append(f"pickle {type(self).__name__}")
        return reduce(self, protocol)

    monkeypatch.setattr(BlockCoder, "encode", encodes)
    monkeypatch.setattr(Block, "__reduce_ex__", reduces)
    return seen


CHATS = [{"messages": says(user="a?", assistant="b!")}] * 30


@pytest.mark.long
def test_no_block_is_serialised_in_a_whole_run(serialised: list[str], run: Run, monkeypatch: Patch) -> None:
    """Beam's size counter looks at elements between fused steps, at the first ones for certain: 100 ms a look."""
    sizes: list[str] = []
    estimate = BlockCoder.estimate_size

    def size(self: BlockCoder, value: Block) -> int:
        sizes.append(type(value).__name__)
        return int(estimate(self, value))

    monkeypatch.setattr(BlockCoder, "estimate_size", size)
    lines = b"".join(json.dumps(row).encode() + b" " * 10_000 + b"\n" for row in CHATS)
    result = run(ALL_FORMATS, lines, block_bytes=65536)
    assert result.manifest["totals"]["rows"] == 30
    assert serialised == []
    assert set(sizes) == {"Records", "Rendered", "Batch"}  # it did look, and at elements of every zone
