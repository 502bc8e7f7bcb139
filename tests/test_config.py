"""What a config may say, what becomes of it, and what the error says when it is wrong."""

import json
from pathlib import Path
from typing import Any, get_args

import hypothesis.strategies as st
import pytest
from hypothesis import given as drawn

from beam_prep.config import PipelineConfig
from beam_prep.config.presets import PRESETS, PresetName
from beam_prep.errors import ConfigError
from tests.conftest import ROOT, Command

TEXT = {"field": "text", "action": "train"}
PROMPT = {"field": "prompt", "action": "mask"}
CHAT = {"field": "messages", "action": "$role", "template": True}
VALUE = {"field": "rewards", "action": "value"}


def sections(*given: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return {"input": {"sections": list(given)}, **parts}


def sources(parts: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    as_source = {name: {"sections": [one]} if "field" in one else one for name, one in given.items()}
    return {"input": {"sources": as_source}, **(parts or {})}


def labels(**parts: Any) -> dict[str, Any]:
    return {"columns": "labels", **parts}


def rules(**preprocessing: Any) -> dict[str, Any]:
    return sections(TEXT, preprocessing=preprocessing)


def written(**output: Any) -> dict[str, Any]:
    return sections(TEXT, output=output)


def decontaminated(**rule: Any) -> dict[str, Any]:
    return rules(decontaminate=rule)


def load(obj: dict[str, Any]) -> PipelineConfig:
    return PipelineConfig.from_dict(obj)


def problems(obj: Any) -> dict[str, str]:
    """Place to problem, as the error message of a wrong config lists them."""
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_dict(obj)
    header, *lines = str(caught.value).split("\n")
    assert header == f"config: {len(lines)} problem{'s' * (len(lines) > 1)} in the config"
    return dict(line.strip().split(": ", 1) for line in lines)


# Normal forms


def preset(name: str, section: dict[str, Any] = CHAT, preprocessing: Any = None, **output: Any) -> dict[str, Any]:
    return sections(section, preprocessing=preprocessing or {}, output={"preset": name, **output})


PACKED: dict[str, Any] = {"preprocessing": {"packing_strategy": "bfd"}}
OLMO = {"sequence": "uint16", "loss_mask": "bool"}
TORCHTUNE = {"input_ids": "tokens", "position_ids": "input_pos", "seq_lens": "lens"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (sections(CHAT), sections({**CHAT, "template": "message"})),
        (decontaminated(against="a", field="q"), decontaminated(against=["a"], field=["q"])),
        (written(storage_format=["tfrecord", "bin"]), written(storage_format=["bin", "tfrecord"])),
        (sections(CHAT, mask={"a": "train", "b": "mask"}), sections(CHAT, mask={"b": "mask", "a": "train"})),
        (sections(CHAT), sections(CHAT, output={"dtype": {"loss_mask": "int32"}, "names": {"loss_mask": "loss_mask"}})),
        (
            sections(CHAT, output=labels(names={"labels": "y", "input_ids": "x"})),
            sections(CHAT, output=labels(names={"input_ids": "x", "labels": "y"})),
        ),
        # presets
        (preset("trl_sft"), sections(CHAT, output=labels(storage_format="arrow"))),
        (
            preset("olmo", TEXT, dtype={"sequence": "uint16"}),
            rules(eos="if_missing") | {"output": {"storage_format": "npy", "dtype": OLMO}},
        ),
        (
            preset("torchtune", names={"seq_lens": "lens"}, **PACKED),
            sections(CHAT, output=labels(storage_format="arrow", names=TORCHTUNE), **PACKED),
        ),
    ],
)
def test_canonical_is_the_same_text_for_configs_that_mean_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert json.dumps(load(one).canonical()) == json.dumps(load(other).canonical())


STORED = json.loads((ROOT / "tests" / "canonical.json").read_text("utf-8"))


@pytest.mark.parametrize("name", STORED)
def test_canonical_is_what_it_was_in_earlier_versions(name: str) -> None:
    stored = STORED[name]
    assert json.dumps(load(stored["config"]).canonical()) == json.dumps(stored["canonical"]), (
        "another canonical config: every output of an earlier version would be made again, and no token cache used. "
        "a new field stands there only where it is not at its default; "
        "canonical() must leave out one of sections or sources, too. tests/canonical.json stays as it is"
    )


# Warnings

UNUSED = "preprocessing.max_packed_len is ignored, because packing_strategy is 'none'"
ROLES, NO_END = "no role trains", "no EOS ends them"
TRAINS: dict[str, Any] = {"mask": {"assistant": "train"}}


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (sections(CHAT, preprocessing={"max_packed_len": 512}, **TRAINS), UNUSED),
        (sections(CHAT, preprocessing={"eos": "always"}, **TRAINS), "preprocessing.eos is ignored"),
        (sections(CHAT, preprocessing={"min_chars": 9}, **TRAINS), "preprocessing.min_chars is ignored"),
        ({"input": {"sections": [TEXT], **sources(a=CHAT)["input"]}, **TRAINS}, "input.sections is ignored"),
        (sections(CHAT, preprocessing={"encode": "joint"}, **TRAINS), "preprocessing.encode is ignored"),
        (sections(TEXT, mask_default="train"), "mask_default is ignored, because no section has the action '$role'"),
        (sections(CHAT), ROLES),
        (sections(CHAT, mask={"assistant": "last"}), None),
        (sections(CHAT, mask_default="train"), None),
        (sections(PROMPT, TEXT), NO_END),
        (sections(PROMPT, TEXT, preprocessing={"eos": "if_missing"}), None),
        (
            written(storage_format=["bin", "npy"], columns="labels"),
            "'npy': OLMo-core reads a mask, and no labels: use columns 'loss_mask'",
        ),
    ],
)
def test_what_is_probably_not_meant_is_warned_of(config: dict[str, Any], warned: str | None) -> None:
    found = load(config).warnings
    assert len(found) == (warned is not None)
    assert warned is None or warned in found[0]


# Sections, sources, columns


@pytest.mark.parametrize(
    ("given", "has_mask"),
    [([PROMPT], False), ([PROMPT, TEXT], True), ([CHAT], True), ([{**PROMPT, "template": True}], False)],
)
def test_mask_is_left_out_where_all_or_nothing_trains(given: list[dict[str, Any]], has_mask: bool) -> None:
    assert list(load(sources(out={"sections": given})).columns()) == ["out", *["out_mask"] * has_mask]


def test_mask_key_forces_a_needless_mask_and_one_that_is_left_out_takes_no_name() -> None:
    assert load(sources(out={"sections": [PROMPT], "mask_key": "m"})).columns() == {"out": "int32", "m": "int32"}
    assert list(load(sources(a=TEXT, a_mask=VALUE)).columns()) == ["a", "a_mask"]


def side(name: str) -> dict[str, Any]:
    return {"sections": [PROMPT, {"field": name, "action": "train"}]}


CONVERSATION = {"field": "prompt", "action": "mask", "template": "conversation"}
ANSWER = {"field": "completion", "action": "train", "template": "conversation"}


def with_dtype(column: str, dtype: str) -> dict[str, Any]:
    return sources({"output": {"dtype": {column: dtype}}}, a=CHAT, r=VALUE)


def value(section: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    """A source of values with more than it may say."""
    return sources(a=CHAT, r={"sections": [{**VALUE, **(section or {})}], **given})


def kept(fields: Any, **output: Any) -> dict[str, Any]:
    return sections(TEXT, output=labels(keep_fields=fields, **output))


def named(names: Any, *given: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return sections(*given or (CHAT,), **parts, output=labels(names=names))


def chunks(**preprocessing: Any) -> dict[str, Any]:
    return rules(**{"truncation_mode": "chunk", **preprocessing})


def rollouts(**preprocessing: Any) -> dict[str, Any]:
    return {"input": {"rollouts": {"logprobs": "logprobs"}}, "preprocessing": preprocessing}


def dated(day: str) -> dict[str, Any]:
    return {"input": {"sections": [TEXT], "date": day}}


MDS = {"storage_format": "mds", "dtype": {"loss_mask": "bool"}}
KNOWN = "sequence, loss_weights, attention_mask, position_ids, seq_lens, loss_mask"

# (config, where its one problem stands, words of it)
PROBLEMS: list[tuple[Any, str, str]] = [
    ({"input": {}}, "input", "neither sections nor sources"),
    (sources({"output": labels()}, chosen=CHAT), "output.columns", "input.sections"),
    (rules(shift=True), "preprocessing.shift", "'labels'"),
    (sections(PROMPT, {**PROMPT, "template": True}), "input.sections", "'train' or '$role'"),
    (sources(rewards=VALUE), "input.sources", "at least one source"),
    (sections({"field": "text", "action": "$role"}), "input.sections[0].action", "template: true"),
    (sections({"field": "m", "action": "$last", "template": "message"}), "input.sections[0].action", "'conversation'"),
    (sections(TEXT, ANSWER), "input.sections", "all sections of an output must have it"),
    (sections(ANSWER, CONVERSATION), "input.sections", "must come first"),
    (sections(CONVERSATION, {**CONVERSATION, "action": "$last"}), "input.sections[1].action", "only section"),
    (sections(TEXT, PROMPT, preprocessing={"encode": "joint"}), "preprocessing.encode", "prompt must come first"),
    (rules(bos="strip"), "preprocessing.bos", "conversation"),
    ({"input": {"sections": [TEXT], "implicit_prompt": True}}, "input.implicit_prompt", "input.sources"),
    (
        {"input": {"sources": {"chosen": {"sections": [TEXT]}, "rejected": side("b")}, "implicit_prompt": True}},
        "input.implicit_prompt",
        "first two sources",
    ),
    # parts that need others
    (chunks(stride=3, truncation_mode="drop"), "preprocessing.stride", "works only with truncation_mode: 'chunk'"),
    (chunks(max_seq_len=64, stride=64), "preprocessing.stride", "found 64; it must be less than a chunk"),
    (
        sources({"preprocessing": {"truncation_mode": "chunk"}}, a=TEXT),
        "preprocessing.truncation_mode",
        "found 'chunk'; it works only with input.sections",
    ),
    (decontaminated(), "preprocessing.decontaminate.against", ""),
    (decontaminated(against=[]), "preprocessing.decontaminate.against", ""),
    (decontaminated(against="a", field=[]), "preprocessing.decontaminate.field", ""),
    (sections(PROMPT, TEXT, output={"fim": {"rate": 0.5}}), "output.fim", "it works only with one section"),
    (written(fim={"rate": 1.5}), "output.fim.rate", ""),
    (sources({"output": {"loss_weights": True}}, a=CHAT), "output.loss_weights", "works only with input.sections"),
    (dated("2026-11-31"), "input.date", "day is out of range for month"),
    (dated("22.11.2026"), "input.date", "Invalid isoformat string: '22.11.2026'"),
    (dated("22.11.2026"), "input.date", "wanted a day such as '2026-11-30'"),
    (dated("2026-11-22"), "input.date", "found '2026-11-22'; it works only with a template"),
    # values
    (sections(TEXT, VALUE), "input.sections[1].action", "input.sources"),
    (sources(a=CHAT, r={"sections": [VALUE, VALUE]}), "input.sources.r.sections[0].action", "only section"),
    (value(list_field=True), "input.sources.r.list_field", ""),
    (value({"template": True}), "input.sources.r.sections[0].template", ""),
    # wrong values
    (sections({**CHAT, "template": "true"}), "input.sections[0].template", "found 'true'; allowed: false, true,"),
    (written(splits={"Train": 1}), "output.splits.Train", "a split: lower-case"),
    (sections(TEXT) | {"Input": {}}, "Input", "unknown key 'Input'; did you mean 'input'? known"),
    (sections({**TEXT, "add_special_tokens": 1}), "input.sections[0].add_special_tokens", ""),
    (
        sections({**TEXT, "action": "trian"}),
        "input.sections[0].action",
        "found 'trian'; did you mean 'train'? allowed: 'train', 'mask', '$role', '$last', 'value'",
    ),
    (sections({"action": "train"}), "input.sections[0].field", "missing"),
    ({}, "input", ""),
    (sections(TEXT, mask={"user": "skip"}), "mask.user", ""),
    (sections(TEXT, version=2), "version", ""),
    (sections({**CHAT, "template": "yes"}), "input.sections[0].template", "allowed: false, true, 'message'"),
    *((rules(padding=each), "preprocessing.padding", "") for each in (0, "5", 5.0, True)),
    (rules(max_seq_len=10**30), "preprocessing.max_seq_len", f"or equal to {1 << 53}"),
    (rules(min_chars=7, max_chars=6), "preprocessing.max_chars", "min_chars, which is 7"),
    (rules(max_items=0), "preprocessing.max_items", "must be greater than 0"),
    # formats and dtypes
    (written(storage_format=["bin", "bin"]), "output.storage_format", "'bin', 'tfrecord'"),
    (
        written(storage_format=["bin", "megatron"], dtype={"sequence": "uint32"}),
        "output.dtype.sequence",
        "found 'uint32'; the format 'megatron' has all dtypes but uint32, uint64, float16",
    ),
    (
        sections(CHAT, output={**MDS, "max_tokens_per_shard": 7 * 2**27}),
        "output.max_tokens_per_shard",
        f"found {7 * 2**27}, of 5 bytes each; at most {7 * 2**29 // 5}, because a shard of 'mds' has at most",
    ),
    (
        written(dtype={"loss_masks": "bool"}),
        "output.dtype.loss_masks",
        f"unknown column 'loss_masks'; did you mean 'loss_mask'? known: {KNOWN}",
    ),
    *((with_dtype("a", each), "output.dtype.a", f"found {each!r}") for each in ("bool", "float16")),
    (with_dtype("a_mask", "float64"), "output.dtype.a_mask", "found 'float64'"),
    (with_dtype("r", "bool"), "output.dtype.r", "float64"),
    (sections(TEXT, output=labels(dtype={"labels": "uint64"})), "output.dtype.labels", "int8, int16, int32, int64"),
    # keys
    (
        rules(max_seq_length=5),
        "preprocessing.max_seq_length",
        "unknown key 'max_seq_length'; here it is preprocessing.max_seq_len; known: ",
    ),
    (sections(TEXT, max_seq_len=5), "max_seq_len", "it belongs in 'preprocessing'"),
    # names of columns
    (sources(a=CHAT, A=TEXT), "input.sources.A", "source 'a' has already"),
    (sources(a=CHAT, a_mask=TEXT), "input.sources.a_mask", ""),
    (sources(a={"sections": [CHAT], "mask_key": "A"}), "input.sources.a", "found column 'A'"),
    *((sources(**{each: CHAT}), f"input.sources[{each!r}]", "letters, digits and '_'") for each in ("a b", "1a", "")),
    (sources(a={"sections": [CHAT], "mask_key": "a\n"}), "input.sources.a.mask_key", "letters, digits and '_'"),
    (sources(Meta=CHAT), "input.sources.Meta", "reserved"),
    # fields that are kept
    (kept("id"), "output.keep_fields", "found 'id'; must be a list of fields, each once, or an object"),
    (kept(["input_ids"]), "output.keep_fields", "found 'input_ids'; the output has a column of this name"),
    (kept(["file"], provenance=True), "output.keep_fields", "found 'file'; the output has a column of this name"),
    (kept(["doc-id"]), "output.keep_fields", "found 'doc-id'; wanted a name of letters, digits and '_'"),
    (kept(["id"], storage_format="megatron"), "output.keep_fields", "the format 'megatron' cannot hold strings"),
    (kept([], provenance=True, dtype={"offset": "int32"}), "output.dtype.offset", "'int32'; it cannot be given here"),
    # names under which columns are written
    (named({"label": "x"}), "output.names.label", "'label', which is not written; columns here: input_ids, labels"),
    (named({"labels": "_a"}), "output.names.labels", "letters, digits and '_'"),
    (named({"labels": "Meta"}), "output.names.labels", "reserved"),
    *(
        (named({"labels": "input_ids", **more}), "output.names.labels", "names column 'input_ids' already")
        for more in ({}, {"input_ids": "X"})
    ),
    # rollouts
    (rollouts(), "preprocessing.truncation_mode", "found 'keep_start'; rollouts are not cut"),
    (rollouts(truncation_mode="drop", packing_strategy="bfd"), "preprocessing.packing_strategy", "works only with inp"),
    (
        rollouts(truncation_mode="drop") | {"output": {"dtype": {"logprobs": "int32"}}},
        "output.dtype.logprobs",
        "allowed for numbers of tokens: float16, float32, float64",
    ),
    (
        {"input": {"rollouts": {"response_ids": None, "rewards": "r"}}},
        "input.rollouts.rewards",
        "found 'r' with response_ids: null",
    ),
    # what a trainer would misread
    (preset("trl_sft", preprocessing={"shift": True}), "preprocessing.shift", "found true, wanted false"),
    (preset("megatron", **PACKED), "preprocessing.packing_strategy", "found 'bfd', wanted 'none'"),
    (preset("olmo", storage_format=["bin", "tfrecord"]), "output.storage_format", "found ['bin', 'tfrecord'], "),
    (preset("maxtext"), "input.sections", "found sections that are not trained in full"),
    (preset("torch"), "output.preset", "found 'torch'; did you mean 'torchtune'?"),
]


@pytest.mark.parametrize(("given", "at", "words"), PROBLEMS)
def test_a_problem_is_said_where_it_stands(given: Any, at: str, words: str) -> None:
    ((place, problem),) = problems(given).items()
    assert place == at
    assert words in problem


def test_a_chat_template_is_given_inline_or_as_a_path_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_bytes(b"\xef\xbb\xbf{{ messages }}\n")
    given = {**sections(CHAT), "input": {"sections": [CHAT], "chat_template": "mine.jinja"}}
    (tmp_path / "c.json").write_text(json.dumps(given))
    assert PipelineConfig.from_json(tmp_path / "c.json").input.chat_template == "{{ messages }}\n"
    (tmp_path / "mine.jinja").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"found 'mine\.jinja', which is an empty file; wanted a template in it"):
        PipelineConfig.from_json(tmp_path / "c.json")
    given["input"]["chat_template"] = "{{ bos_token }}"
    assert load(given).input.chat_template == "{{ bos_token }}"
    given["input"]["chat_template"] = "nowhere.jinja"
    with pytest.raises(ConfigError, match=r"nowhere\.jinja"):
        load(given)
    given["input"]["chat_template"] = "tokenizer/chat_template.json"
    with pytest.raises(ConfigError, match=r"is JSON, .+ wanted the template alone: save the text of its key"):
        load(given)


def test_a_config_of_others_reads_no_file_outside_its_folder() -> None:
    def given(path: str, files: Any = "below") -> PipelineConfig:
        text = json.dumps({"input": {"sections": [CHAT], "chat_template": path}})
        return PipelineConfig.from_text(text, "gs://bucket/configs/mine.json", stored.__getitem__, files)

    stored = {"gs://bucket/configs/templates/mine.jinja": b"{{ messages }}"}
    assert given("templates/mine.jinja").input.chat_template == "{{ messages }}"
    for path in ("/etc/passwd", "a/../../mine.jinja", "file:///etc/passwd", "gs://other/mine.jinja", "a\\b"):
        with pytest.raises(ConfigError, match=r"input\.chat_template: (found .*wanted|.*must have)"):
            given(path)
    with pytest.raises(ConfigError, match="must have the template itself"):
        given("templates/mine.jinja", "none")


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "a", "none", "train", "text", "\0", "\ud800", "2026-02-30", "{{ a }}", "/\0", "x" * 200]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "a", "", "field"]), inner),
    max_leaves=6,
)
COMPLETE = [
    *(json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "configs").glob("*.json"))),
    {"input": {"adapter": "tokenized"}},
    {
        "version": 1,
        "input": {
            "sections": [{"field": "a", "action": "$last", "template": "conversation", "add_special_tokens": None}],
            "adapter": {"name": "sharegpt", "roles": {"gpt": "assistant"}},
            "chat_template": "{{ messages }}",
            "date": "2026-11-22",
            "implicit_prompt": False,
        },
        "mask": {"assistant": "train"},
        "mask_default": "mask",
        "preprocessing": {"padding": 8, "max_packed_len": 20, "packing_group": 3, "max_items": 2, "bos": "strip"},
        "output": {"dtype": {"labels": "int32"}, "names": {"labels": "y"}, "columns": "labels", "domain_key": "d"},
    },
    {"input": {"adapter": {"name": "alpaca", "to": "messages", "separator": " "}, "sections": [CHAT]}},
]


@st.composite
def nearly_configs(draw: st.DrawFn) -> Any:
    """A config in which something else stands at one or two places."""
    config = json.loads(json.dumps(draw(st.sampled_from(COMPLETE))))
    for _ in range(draw(st.integers(1, 2))):
        at: Any = config
        while True:
            steps: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
            within: bool = bool(steps) and draw(st.booleans() | st.just(True))
            step = draw(st.sampled_from(steps)) if within else "x"
            if isinstance(at, list) and step == "x":
                at.append(draw(ANY))
                break
            if not isinstance(at.get(step) if isinstance(at, dict) else at[step], dict | list) or draw(st.booleans()):
                at[step] = draw(ANY)
                break
            at = at[step]
    return config


@drawn(nearly_configs() | ANY)
def test_whatever_stands_in_a_config_it_is_one_or_a_config_error(obj: Any) -> None:
    try:
        config = PipelineConfig.from_text(json.dumps(obj))
    except ConfigError as error:
        str(error).encode()
    else:
        canonical = config.canonical()
        again = PipelineConfig.from_text(json.dumps(canonical))
        assert again.canonical() == canonical
        assert again.outputs() == config.outputs()
        assert canonical["output"]["dtype"] == config.columns() != {}
        assert all(config.warnings)


# Character limits


def test_char_limits_act_only_on_plain_text_that_is_all_trained() -> None:
    title = {"field": "title", "action": "train"}
    assert load(sections(title, TEXT, title)).char_filter_fields == ("title", "text")
    assert load(sections(PROMPT, TEXT)).char_filter_fields == ()
    assert load(sections({**TEXT, "template": True})).char_filter_fields == ()
    listed = {"sections": [TEXT], "list_field": True}
    assert load(sources(a=listed, b=title, c=CHAT, d=VALUE)).char_filter_fields == ("title",)


# Formats and dtypes


def test_vocabulary_borders_and_the_next_wider_dtype() -> None:
    config = load(written(dtype={"sequence": "uint16"}))
    config.check_vocabulary(65535)
    with pytest.raises(ConfigError, match=r"up to 65535; .* up to 65536: use int32 or uint32"):
        config.check_vocabulary(65536)


@pytest.mark.parametrize(
    ("preprocessing", "most"),
    [
        ({"packing_strategy": "bfd"}, {"position_ids": 256, "seq_lens": 255}),
        ({"padding": 16}, {"position_ids": 256}),
        ({}, {"position_ids": 256}),
    ],
)
def test_positions_and_lengths_must_fit_their_dtype_in_the_longest_row(preprocessing: Any, most: Any) -> None:
    for name, fits in most.items():
        output = {"position_ids_mode": "continuous", "dtype": {name: "uint8"}}
        load(sections(TEXT, preprocessing={**preprocessing, "max_seq_len": fits}, output=output))
        with pytest.raises(ConfigError, match=f"{name}: found 'uint8', which is for rows of at most {fits} tokens"):
            load(sections(TEXT, preprocessing={**preprocessing, "max_seq_len": fits + 1}, output=output))


def test_vocabulary_must_fit_labels_and_lists_too_but_not_values() -> None:
    listed = {"sections": [TEXT], "list_field": True}
    dtype = {"output": {"dtype": {"a": "int8", "b": "int8", "r": "int8"}}}
    with pytest.raises(ConfigError) as caught:
        load(sources(dtype, a=CHAT, b=listed, r=VALUE)).check_vocabulary(1000)
    assert [line.split()[0] for line in str(caught.value).split("\n")] == ["output.dtype.a", "output.dtype.b"]


# What the error says


def test_all_problems_come_at_once() -> None:
    given = sections({"field": "", "action": "no"}, maks={}, output={"dtype": {"x": "bool", "sequence": "bool"}})
    given["preprocessing"] = {"max_items": 0, "shift": list(range(10_000))}
    found = problems(given)
    wanted = {"maks", "input.sections[0].field", "input.sections[0].action", "preprocessing.max_items"}
    assert set(found) == wanted | {"preprocessing.shift"}
    assert len(found["preprocessing.shift"]) < 200


# Files and text

GOOD = json.dumps(sections(TEXT)).encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"input": {},\n "mask": {,}\n}', "not JSON: unexpected character, expected a string key: line 2 column 11"),
        *((each, "") for each in (b"", b"{", b"[" * 100_000, b'{"version": ' + b"1" * 5000 + b"}")),
        (b'{"input": "\xff"}', "the config cannot be read: 'utf-8' codec can't decode byte 0xff"),
        (None, "the config cannot be read"),
    ],
)
def test_a_file_that_is_no_config_is_named(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_json(str(path))
    assert str(caught.value).startswith(f"{path}: {says}")
    path.write_bytes(b"\xef\xbb\xbf" + GOOD)
    assert PipelineConfig.from_json(path).columns() == {"sequence": "int32"}


def test_what_json_allows_and_no_config_may_have_is_an_error() -> None:
    text = '{"mask": {"user": "mask", "user": "train"}, "input": {"sections": [{"field": "a"}]}}'
    with pytest.raises(ConfigError, match=r"^config: not JSON: the key 'user' is twice in one object$"):
        PipelineConfig.from_text(text)
    with pytest.raises(ConfigError, match=r"^config: not JSON: half of a surrogate pair: "):
        PipelineConfig.from_text(json.dumps(sections(CHAT, mask={"\ud800": "train"})))


# The JSON Schema


def test_schema_agrees_with_the_config_reader() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = PipelineConfig.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    accepts = jsonschema.Draft202012Validator(schema).is_valid
    for given in COMPLETE:
        assert accepts({"$schema": "./schema.json", **given}), given
    for wrong in (
        sections(TEXT, bogus=1),
        written(storage_format=["bin", "bin"]),
        rules(max_items=0),
        sources(**{"a b": CHAT}),
    ):
        assert not accepts(wrong), wrong


def test_presets_are_printed(command: Command) -> None:
    told = command("presets")
    assert all(f"\n{name}\n" in f"\n{told}" for name in get_args(PresetName))
    assert PRESETS.keys() == set(get_args(PresetName))
    assert "output.names: seq_lens -> seq_lengths" in told
    assert json.dumps("megatron") in told
