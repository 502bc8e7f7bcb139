"""What a config may say, what becomes of it, and what the error says when it is wrong."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given as drawn

from beam_prep import errors
from beam_prep.config import PipelineConfig, loading
from beam_prep.config.loading import with_template
from beam_prep.config.values import ALLOWED_DTYPES
from beam_prep.data.schema import Output, Section
from beam_prep.errors import BeamPrepError, ConfigError
from beam_prep.formats import FORMATS
from beam_prep.formats.megatron import CODES

ROOT = Path(__file__).resolve().parents[1]
CASES = Path(os.environ.get("BEAM_PREP_SHARED", ROOT.parent / "shared")) / "goldens" / "sections"

TEXT = {"field": "text", "action": "train"}
PROMPT = {"field": "prompt", "action": "mask"}
CHAT = {"field": "messages", "action": "$role", "template": True}
VALUE = {"field": "rewards", "action": "value"}


def sections(*given: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return {"input": {"sections": list(given)}, **parts}


def sources(parts: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    as_source = {name: {"sections": [one]} if "field" in one else one for name, one in given.items()}
    return {"input": {"sources": as_source}, **(parts or {})}


def load(obj: dict[str, Any]) -> PipelineConfig:
    return PipelineConfig.from_dict(obj)


def problems(obj: Any) -> dict[str, str]:
    """Place to problem, as the error message of a wrong config lists them."""
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_dict(obj)
    header, *lines = str(caught.value).split("\n")
    assert header == f"config: {len(lines)} problem{'s' * (len(lines) > 1)} in the config"
    return dict(line.strip().split(": ", 1) for line in lines)


def the_problem(obj: Any, at: str) -> str:
    found = problems(obj)
    assert list(found) == [at]
    return found[at]


# The configs of seed document 001


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("sft_chat", {"sequence": "int32", "loss_mask": "bool"}),
        ("sft_instruction", {"sequence": "int32", "loss_mask": "int32"}),
        ("pretrain", {"sequence": "int32"}),
        ("dpo", {"chosen": "int32", "chosen_mask": "int32", "rejected": "int32", "rejected_mask": "int32"}),
        ("grpo", {"prompts": "int32", "responses": "int32", "masks": "int32", "rewards": "float32"}),
    ],
)
def test_shipped_configs_give_the_columns_of_the_format_page_in_order(name: str, columns: dict[str, str]) -> None:
    config = PipelineConfig.from_json(ROOT / "configs" / f"{name}.json")
    assert list(config.columns().items()) == list(columns.items())
    assert len(config.warnings) == (name == "sft_instruction")  # no separator, no EOS


def test_shipped_configs_are_the_five() -> None:
    assert {"sft_chat", "sft_instruction", "pretrain", "dpo", "grpo"} <= {
        path.stem for path in ROOT.glob("configs/*.json")
    }


@pytest.mark.skipif(not CASES.is_dir(), reason=f"no golden cases at {CASES} (set BEAM_PREP_SHARED)")
def test_configs_of_the_golden_cases_load_and_name_the_columns_that_were_written() -> None:
    paths = sorted(CASES.glob("*/config.json"))
    assert len(paths) >= 13
    for path in paths:
        columns = PipelineConfig.from_json(path).columns()
        for meta in path.parent.glob("expected/**/meta.json"):
            written = {name: entry["dtype"] for name, entry in json.loads(meta.read_text()).items()}
            if "rewards" in columns:  # our rules: values are float32, a mask that cannot train is left out
                written = {**written, "rewards": "float32"}
                del written["prompts_mask"]
            assert columns == written, path


# Defaults and normal forms


def test_defaults() -> None:
    config = load(sections(TEXT))
    assert config.mask == {}
    assert config.mask_default == "mask"
    assert config.version == 1
    assert config.preprocessing.model_dump() == {
        "max_seq_len": 2048,
        "min_chars": 50,
        "max_chars": 2_000_000,
        "max_items": None,
        "rows_without_loss": "drop",
        "truncation_mode": "keep_start",
        "stride": 0,
        "encode": "separate",
        "eos": "never",
        "bos": "keep",
        "control_tokens": "keep",
        "padding": "none",
        "packing_strategy": "none",
        "max_packed_len": None,
        "packing_group": 5000,
        "decontaminate": None,
        "shift": False,
        "deduplicate": None,
    }
    assert config.output.formats == ("bin",)
    assert config.output.max_tokens_per_shard == 100_000_000
    assert config.output.domain_key is None
    assert config.output.columns == "loss_mask"
    assert config.input.sections is not None
    assert config.input.sections[0].template is False
    assert config.input.sections[0].add_special_tokens is None


def test_config_is_frozen_and_pickles() -> None:
    config = load(sources(chosen=CHAT, rejected=CHAT))
    assert pickle.loads(pickle.dumps(config)) == config
    assert pickle.loads(pickle.dumps(config.outputs())) == config.outputs()
    with pytest.raises(ValueError, match="frozen"):
        config.mask_default = "train"


def test_from_dict_keeps_no_tie_to_the_given_dict() -> None:
    given = sections(CHAT, mask={"user": "mask"}, output={"dtype": {"sequence": "int64"}})
    config = load(given)
    given["mask"]["user"] = "train"
    given["output"]["dtype"].clear()
    assert config.mask == {"user": "mask"}
    assert config.columns()["sequence"] == "int64"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (sections(CHAT), sections({**CHAT, "template": "message"})),
        (sections(TEXT), sections({**TEXT, "template": False, "add_special_tokens": None})),
        (sections(TEXT), {**sections(TEXT), "$schema": "./schema.json", "version": 1}),
        (sections(TEXT), sections(TEXT, output={"storage_format": "bin"})),
        (sections(TEXT, output={"storage_format": "bin"}), sections(TEXT, output={"storage_format": ["bin"]})),
        (
            sections(TEXT, output={"storage_format": ["tfrecord", "bin"]}),
            sections(TEXT, output={"storage_format": ["bin", "tfrecord"]}),
        ),
        (sections(CHAT, mask={"a": "train", "b": "mask"}), sections(CHAT, mask={"b": "mask", "a": "train"})),
        (sections(CHAT), sections(CHAT, output={"dtype": {"loss_mask": "int32"}})),
        (sections(TEXT), sections(TEXT, output={"dtype": {"loss_mask": "bool"}})),
        (sections(TEXT), {"input": {"sections": [TEXT], "sources": {}}}),
        (sources(chosen=CHAT), sources(chosen={"sections": [CHAT], "mask_key": "chosen_mask", "list_field": False})),
        (sources(chosen=CHAT), {"input": {"sections": [TEXT], **sources(chosen=CHAT)["input"]}}),
        (sources(a=CHAT), {"input": {"sections": [], **sources(a=CHAT)["input"]}, "preprocessing": {"shift": False}}),
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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (sections(CHAT), sections(CHAT, mask={"assistant": "train"})),
        (sections(TEXT), sections(TEXT, output={"storage_format": "tfrecord"})),
        (sections(TEXT), sections(TEXT, output={"dtype": {"sequence": "int64"}})),
        (sources(a=CHAT, b=CHAT), sources(b=CHAT, a=CHAT)),
        (sources(a=TEXT), sources(a={"sections": [TEXT], "mask_key": "a_mask"})),
        (sections(TEXT), sections({**TEXT, "add_special_tokens": True})),
    ],
)
def test_canonical_differs_for_configs_that_differ(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert json.dumps(load(one).canonical()) != json.dumps(load(other).canonical())


@pytest.mark.parametrize(
    "given",
    [
        sections(CHAT, TEXT, mask={"user": "last"}, output={"domain_key": "source"}),
        sections(PROMPT, TEXT, output={"columns": "labels"}, preprocessing={"shift": True}),
        sources(prompts=PROMPT, responses={"sections": [TEXT], "list_field": True, "mask_key": "masks"}, rewards=VALUE),
        sections(
            TEXT, output={"keep_fields": {"id": "string", "n-th": "int32"}, "names": {"n-th": "n"}, "provenance": True}
        ),
    ],
)
def test_canonical_is_a_config_itself_and_says_everything(given: dict[str, Any]) -> None:
    canonical = load(given).canonical()
    again = PipelineConfig.from_text(json.dumps(canonical))
    assert again.canonical() == canonical
    assert again.outputs() == load(given).outputs()
    assert set(canonical) == {"version", "input", "mask", "mask_default", "preprocessing", "output"}
    assert canonical["output"]["dtype"] == load(given).columns()


# Sections, sources, columns


@pytest.mark.parametrize(("key", "value"), [("max_packed_len", 512), ("packing_group", 5000)])
def test_settings_of_packing_are_ignored_without_packing_with_a_warning(key: str, value: int) -> None:
    warnings = load(sections(CHAT, preprocessing={key: value}, mask={"assistant": "train"})).warnings
    assert warnings == [f"preprocessing.{key} is ignored, because packing_strategy is 'none'"]
    packed = {key: value, "packing_strategy": "bfd"}
    assert load(sections(CHAT, preprocessing=packed, mask={"assistant": "train"})).warnings == []


def test_sections_are_ignored_beside_sources_with_a_warning() -> None:
    config = load({"input": {"sections": [TEXT], "sources": {"chosen": {"sections": [CHAT]}}}, "mask_default": "train"})
    assert list(config.columns()) == ["chosen", "chosen_mask"]
    (warning,) = config.warnings
    assert "input.sections is ignored" in warning


def test_empty_sources_count_as_absent() -> None:
    config = load({"input": {"sections": [TEXT], "sources": {}}})
    assert list(config.columns()) == ["sequence"]
    assert config.warnings == []


@pytest.mark.parametrize(
    ("parts", "warned"),
    [
        ({}, True),
        ({"mask": {"user": "mask"}}, True),
        ({"mask": {"assistant": "train"}}, False),
        ({"mask": {"assistant": "last"}}, False),
        ({"mask_default": "train"}, False),
    ],
)
def test_roles_that_never_train_are_warned_of(parts: dict[str, Any], warned: bool) -> None:
    assert any("no role trains" in warning for warning in load(sections(CHAT, **parts)).warnings) is warned


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (sections(PROMPT, TEXT), True),
        (sections(PROMPT, TEXT, preprocessing={"encode": "joint"}), True),
        (sources(chosen={"sections": [PROMPT, TEXT]}), True),
        (sections(PROMPT, TEXT, preprocessing={"eos": "if_missing"}), False),
        (sections(PROMPT, TEXT, preprocessing={"eos": "always"}), False),
        (sections(TEXT), False),
        (sections(CHAT), False),
        (sections(PROMPT, CHAT), False),
        (sources(texts={"sections": [PROMPT, TEXT], "list_field": True}), False),
    ],
)
def test_texts_that_follow_each_other_with_nothing_between_and_no_eos_are_warned_of(
    config: dict[str, Any], warned: bool
) -> None:
    found = load(config).warnings
    assert any("no EOS ends them" in warning for warning in found) is warned, found


@pytest.mark.parametrize(
    "given", [{}, {"sections": None}, {"sections": []}, {"sources": {}}, {"sections": [], "sources": {}}]
)
def test_neither_sections_nor_sources_is_an_error(given: dict[str, Any]) -> None:
    assert "neither sections nor sources" in the_problem({"input": given}, "input")


def test_outputs_describe_every_source() -> None:
    responses = {"sections": [TEXT], "list_field": True, "mask_key": "masks"}
    config = load(sources(prompts=PROMPT, responses=responses, rewards=VALUE))
    prompts, texts, rewards = config.outputs()
    assert (prompts.name, prompts.kind, prompts.mask_name) == ("prompts", "ids", None)
    assert (texts.name, texts.kind, texts.mask_name) == ("responses", "list", "masks")
    assert (rewards.name, rewards.kind, rewards.mask_name) == ("rewards", "value", None)
    assert config.columns() == {"prompts": "int32", "responses": "int32", "masks": "int32", "rewards": "float32"}
    assert [spec.plain for spec in (prompts, texts, rewards)] == [False, True, False]
    assert [spec.trains for spec in (prompts, texts, rewards)] == [False, True, False]
    assert [section.field for spec in (prompts, texts, rewards) for section in spec.sections] == [
        "prompt",
        "text",
        "rewards",
    ]


@pytest.mark.parametrize(
    ("given", "has_template", "plain", "trains", "has_mask"),
    [
        ([TEXT], False, True, True, False),
        ([TEXT, TEXT], False, True, True, False),
        ([PROMPT], False, False, False, False),
        ([PROMPT, TEXT], False, False, True, True),
        ([CHAT], True, False, True, True),
        ([{**TEXT, "template": True}], True, False, True, True),
        ([{**PROMPT, "template": True}], True, False, False, False),
        ([PROMPT, {**CHAT, "template": "message"}], True, False, True, True),
    ],
)
@pytest.mark.parametrize("list_field", [False, True])
def test_mask_is_left_out_where_all_or_nothing_trains(
    given: list[dict[str, Any]], list_field: bool, has_template: bool, plain: bool, trains: bool, has_mask: bool
) -> None:
    (spec,) = load(sources(out={"sections": given, "list_field": list_field})).outputs()
    assert (spec.has_template, spec.plain, spec.trains) == (has_template, plain, trains)
    assert spec.mask_name == ("out_mask" if has_mask else None)
    assert spec.kind == ("list" if list_field else "ids")


@pytest.mark.parametrize("one", [TEXT, PROMPT])
def test_mask_key_forces_a_needless_mask(one: dict[str, Any]) -> None:
    assert load(sources(out={"sections": [one], "mask_key": "m"})).columns() == {"out": "int32", "m": "int32"}


def test_sections_without_a_mask_are_one_column() -> None:
    assert load(sections(TEXT)).outputs() == (Output("sequence", "ids", (Section("text", "train"),)),)
    assert load(sections(TEXT)).columns() == {"sequence": "int32"}


def test_labels_are_always_written() -> None:
    for given in ([TEXT], [PROMPT, TEXT], [CHAT]):
        config = load(sections(*given, output={"columns": "labels"}))
        assert list(config.columns().items()) == [("input_ids", "int32"), ("labels", "int32")]


def test_labels_work_only_with_sections() -> None:
    problem = the_problem(sources({"output": {"columns": "labels"}}, chosen=CHAT), "output.columns")
    assert "input.sections" in problem


def test_shift_needs_labels() -> None:
    assert load(sections(TEXT, preprocessing={"shift": True}, output={"columns": "labels"})).preprocessing.shift
    assert "'labels'" in the_problem(sections(TEXT, preprocessing={"shift": True}), "preprocessing.shift")


def test_sections_of_which_none_can_train_are_an_error() -> None:
    problem = the_problem(sections(PROMPT, {**PROMPT, "template": True}), "input.sections")
    assert "'train' or '$role'" in problem


def test_sources_of_values_only_are_an_error() -> None:
    assert "at least one source" in the_problem(sources(rewards=VALUE), "input.sources")


# Actions and templates


def test_role_needs_messages() -> None:
    problem = the_problem(sections({"field": "text", "action": "$role"}), "input.sections[0].action")
    assert "no roles" in problem
    assert "template: true" in problem


@pytest.mark.parametrize("template", [False, True, "message"])
def test_last_needs_a_conversation_template(template: object) -> None:
    given = sections({"field": "m", "action": "$last", "template": template})
    assert "template: 'conversation'" in the_problem(given, "input.sections[0].action")


def test_all_sections_of_a_conversation_are_conversations() -> None:
    mixed = sections(TEXT, {**CHAT, "template": "conversation"})
    assert "all sections of an output must have it" in the_problem(mixed, "input.sections")


def test_the_prompt_of_a_conversation_comes_first() -> None:
    prompt = {"field": "prompt", "action": "mask", "template": "conversation"}
    answer = {"field": "completion", "action": "train", "template": "conversation"}
    assert load(sections(prompt, answer)).columns() == {"sequence": "int32", "loss_mask": "int32"}
    assert "must come first" in the_problem(sections(answer, prompt), "input.sections")
    last = {**prompt, "action": "$last"}
    assert "only section" in problems(sections(prompt, last))["input.sections[1].action"]


def test_joint_encoding_wants_the_prompt_first() -> None:
    given = sections(TEXT, {"field": "b", "action": "mask"}, preprocessing={"encode": "joint"})
    assert "prompt must come first" in the_problem(given, "preprocessing.encode")


def test_bos_rules_are_for_conversations() -> None:
    assert "conversation" in the_problem(sections(TEXT, preprocessing={"bos": "strip"}), "preprocessing.bos")


def test_implicit_prompts_are_for_two_sides_with_one_prompt_field() -> None:
    def side(name: str) -> dict[str, Any]:
        return {"sections": [{"field": "prompt", "action": "mask"}, {"field": name, "action": "train"}]}

    good = {"input": {"sources": {"chosen": side("chosen"), "rejected": side("rejected")}, "implicit_prompt": True}}
    assert load(good).input.implicit_prompt
    lone = {"input": {"sections": [TEXT], "implicit_prompt": True}}
    assert "input.sources" in the_problem(lone, "input.implicit_prompt")
    bare = {"input": {"sources": {"chosen": {"sections": [TEXT]}, "rejected": side("b")}, "implicit_prompt": True}}
    assert "first two sources" in the_problem(bare, "input.implicit_prompt")


def test_a_chat_template_is_given_inline_or_as_a_path_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_bytes(b"{{ messages }}\n")
    given = {**sections(CHAT), "input": {"sections": [CHAT], "chat_template": "mine.jinja"}}
    (tmp_path / "c.json").write_text(json.dumps(given))
    assert PipelineConfig.from_json(tmp_path / "c.json").input.chat_template == "{{ messages }}\n"
    given["input"]["chat_template"] = "{{ bos_token }}"
    assert load(given).input.chat_template == "{{ bos_token }}"
    given["input"]["chat_template"] = "nowhere.jinja"
    with pytest.raises(ConfigError, match=r"nowhere\.jinja"):
        load(given)


def test_a_bom_of_a_template_file_is_no_text_of_the_template(tmp_path: Path) -> None:
    (tmp_path / "bom.jinja").write_bytes(b"\xef\xbb\xbf{{ messages }}\xef\xbb\xbf\n")
    given = {"input": {"sections": [CHAT], "chat_template": "bom.jinja"}}
    assert with_template(given, str(tmp_path))["input"]["chat_template"] == "{{ messages }}\ufeff\n"


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../mine.jinja", "a/../../mine.jinja", "file:///etc/passwd", "gs://other/mine.jinja", "a\\b"],
)
@pytest.mark.parametrize("files", ["none", "below"])
def test_a_config_of_others_reads_no_file_outside_its_folder(path: str, files: Any) -> None:
    def read(path: str) -> bytes:
        raise AssertionError(path)

    given = json.dumps({"input": {"sections": [CHAT], "chat_template": path}})
    with pytest.raises(ConfigError, match=r"input\.chat_template: found .*wanted|input\.chat_template: .*must have"):
        PipelineConfig.from_text(given, "gs://bucket/configs/mine.json", read, files)


def test_a_config_in_a_store_may_have_its_template_below_its_folder() -> None:
    given = json.dumps({"input": {"sections": [CHAT], "chat_template": "templates/mine.jinja"}})
    files = {"gs://bucket/configs/templates/mine.jinja": b"{{ messages }}"}
    config = PipelineConfig.from_text(given, "gs://bucket/configs/mine.json", files.__getitem__, "below")
    assert config.input.chat_template == "{{ messages }}"
    with pytest.raises(ConfigError, match="must have the template itself"):
        PipelineConfig.from_text(given, "--config_json", files="none")


def test_a_template_s_file_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_CONFIG_BYTES", 300)
    (tmp_path / "c.json").write_text(json.dumps({"input": {"sections": [CHAT], "chat_template": "/dev/zero"}}))
    with pytest.raises(ConfigError, match=r"'/dev/zero', which cannot be read \(.*more than 300 bytes"):
        PipelineConfig.from_json(tmp_path / "c.json")
    with pytest.raises(ConfigError, match="more than 300 bytes"):
        PipelineConfig.from_json("/dev/zero")


@pytest.mark.parametrize("template", ["a\0b", "{{ '\0' }}", "\ud800", "{{ '\udfff' }}"])
def test_a_template_with_a_nul_or_half_of_a_pair_is_a_problem_with_its_place(template: str) -> None:
    with pytest.raises(ConfigError, match=r"input\.chat_template: found"):
        PipelineConfig.from_text(json.dumps({"input": {"sections": [CHAT], "chat_template": template}}))


@pytest.mark.parametrize("padding", [5_000_000, 10**9, "max_length"])
def test_rows_are_not_padded_without_bound(padding: object) -> None:
    given = sections(TEXT, preprocessing={"padding": padding, "max_seq_len": 10**9})
    assert "at most 4194304" in the_problem(given, "preprocessing.padding")


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
        json.dumps(config.canonical()).encode()
        assert config.columns()
        assert all(config.warnings)


@pytest.mark.parametrize("template", [0, 1, "yes", None, ["message"]])
def test_template_takes_only_its_values(template: object) -> None:
    problem = the_problem(sections({**TEXT, "template": template}), "input.sections[0].template")
    assert "allowed: false, true, 'message', 'conversation'" in problem


def test_value_works_only_alone_in_a_source() -> None:
    assert "input.sources" in the_problem(sections(TEXT, VALUE), "input.sections[1].action")
    two = sources(a=CHAT, r={"sections": [TEXT, VALUE]})
    assert "only section" in the_problem(two, "input.sources.r.sections[1].action")
    twice = sources(a=CHAT, r={"sections": [VALUE, VALUE]})
    assert "only section" in the_problem(twice, "input.sources.r.sections[0].action")


def test_value_refuses_what_is_for_text() -> None:
    def source(section: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
        return sources(a=CHAT, r={"sections": [{**VALUE, **(section or {})}], **given})

    assert load(source()).columns()["r"] == "float32"
    the_problem(source(list_field=True), "input.sources.r.list_field")
    the_problem(source(mask_key="r_mask"), "input.sources.r.mask_key")
    the_problem(source({"template": True}), "input.sources.r.sections[0].template")
    the_problem(source({"add_special_tokens": False}), "input.sources.r.sections[0].add_special_tokens")


@pytest.mark.parametrize(
    ("given", "at"),
    [
        (sections({"field": "", "action": "train"}), "input.sections[0].field"),
        (sections({"field": 3, "action": "train"}), "input.sections[0].field"),
        (sections({**TEXT, "add_special_tokens": 1}), "input.sections[0].add_special_tokens"),
        (sections({**TEXT, "action": "TRAIN"}), "input.sections[0].action"),
        (sections({"action": "train"}), "input.sections[0].field"),
        (sections({"field": "text"}), "input.sections[0].action"),
        ({"input": {"sections": TEXT}}, "input.sections"),
        ({"input": {"sections": ["text"]}}, "input.sections[0]"),
        (sources(a={"sections": []}), "input.sources.a.sections"),
        (sources(a={"list_field": True}), "input.sources.a.sections"),
        (sources(a={"sections": [CHAT], "list_field": 0}), "input.sources.a.list_field"),
        ({"input": {"sources": [TEXT]}}, "input.sources"),
        ({"input": None}, "input"),
        ({}, "input"),
        ([], "config"),
        (None, "config"),
        (sections(TEXT, mask=None), "mask"),
        (sections(TEXT, mask={"user": "skip"}), "mask.user"),
        (sections(TEXT, mask={"user": True}), "mask.user"),
        (sections(TEXT, mask={"": "mask"}), "mask['']"),
        (sections(TEXT, mask_default="last"), "mask_default"),
        (sections(TEXT, version=2), "version"),
        (sections(TEXT, version="1"), "version"),
        (sections(TEXT, version=1.0), "version"),
        (sections(TEXT, version=True), "version"),
        (sections(TEXT, preprocessing=None), "preprocessing"),
        (sections(TEXT, preprocessing={"max_seq_len": 0}), "preprocessing.max_seq_len"),
        (sections(TEXT, preprocessing={"max_seq_len": None}), "preprocessing.max_seq_len"),
        (sections(TEXT, preprocessing={"max_seq_len": "5"}), "preprocessing.max_seq_len"),
        (sections(TEXT, preprocessing={"max_seq_len": 5.0}), "preprocessing.max_seq_len"),
        (sections(TEXT, preprocessing={"max_seq_len": True}), "preprocessing.max_seq_len"),
        (sections(TEXT, preprocessing={"min_chars": -1}), "preprocessing.min_chars"),
        (sections(TEXT, preprocessing={"min_chars": 0, "max_chars": 0}), "preprocessing.max_chars"),
        (sections(TEXT, preprocessing={"max_items": -1}), "preprocessing.max_items"),
        (sections(TEXT, preprocessing={"rows_without_loss": "skip"}), "preprocessing.rows_without_loss"),
        (sections(TEXT, preprocessing={"shift": "no"}), "preprocessing.shift"),
        (sections(TEXT, output={"domain_key": ""}), "output.domain_key"),
        (sections(TEXT, output={"max_tokens_per_shard": 0}), "output.max_tokens_per_shard"),
        (sections(TEXT, output={"columns": "both"}), "output.columns"),
        (sections(TEXT, output={"dtype": {"sequence": "int"}}), "output.dtype.sequence"),
        (sections(TEXT, output={"dtype": []}), "output.dtype"),
    ],
)
def test_wrong_values_are_refused_where_they_stand(given: Any, at: str) -> None:
    the_problem(given, at)


# Names of columns


@pytest.mark.parametrize("name", ["a b", "1a", "_a", "", "a/b", "a.b", "é", "a\n"])
def test_names_of_sources_and_masks_are_plain_words(name: str) -> None:
    at = f"input.sources.{name}" if name.isidentifier() else f"input.sources[{name!r}]"
    assert "letters, digits and '_'" in the_problem(sources(**{name: CHAT}), at)
    the_problem(sources(a={"sections": [CHAT], "mask_key": name}), "input.sources.a.mask_key")


@pytest.mark.parametrize("name", ["domain", "position_ids", "seq_lens", "meta", "Meta"])
def test_reserved_names_are_refused(name: str) -> None:
    assert "reserved" in the_problem(sources(**{name: CHAT}), f"input.sources.{name}")
    assert "reserved" in the_problem(sources(a={"sections": [CHAT], "mask_key": name}), "input.sources.a.mask_key")


def test_column_names_are_distinct_whatever_their_case() -> None:
    problem = the_problem(sources(a=CHAT, A=TEXT), "input.sources.A")
    assert "input.sources.a" in problem
    assert "case" in problem
    the_problem(sources(a=CHAT, a_mask=TEXT), "input.sources.a_mask")
    the_problem(sources(a={"sections": [CHAT], "mask_key": "A"}), "input.sources.a.mask_key")
    masks = {"sections": [CHAT], "mask_key": "masks"}
    the_problem(sources(a=masks, b=masks), "input.sources.b.mask_key")


def test_a_mask_that_is_left_out_takes_no_name() -> None:
    assert list(load(sources(a=TEXT, a_mask=VALUE)).columns()) == ["a", "a_mask"]


# Names under which columns are written

PACKED = {"preprocessing": {"packing_strategy": "bfd"}}


def named(names: Any, *given: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return sections(*given or (CHAT,), **parts, output={"columns": "labels", "names": names})


def test_names_are_those_that_are_written_and_all_else_keeps_to_the_columns_own() -> None:
    output = {"columns": "labels", "names": {"seq_lens": "seq_lengths", "labels": "y"}, "dtype": {"labels": "int64"}}
    config = load(sections(CHAT, **PACKED, output=output))
    own = {"input_ids": "int32", "labels": "int64", "position_ids": "int32", "seq_lens": "int32"}
    assert config.columns() == own
    assert config.written() == {"input_ids": "int32", "y": "int64", "position_ids": "int32", "seq_lengths": "int32"}
    problem = the_problem(sections(CHAT, output={**output, "dtype": {"y": "int64"}}, **PACKED), "output.dtype.y")
    assert problem.startswith("unknown column 'y'")


@pytest.mark.parametrize("names", [{}, {"labels": "labels"}])
def test_names_that_change_nothing_leave_the_canonical_config_as_it_was(names: dict[str, str]) -> None:
    assert "names" not in load(named(names)).canonical()["output"]


def test_names_stand_in_the_canonical_config_in_the_order_of_the_columns() -> None:
    one, other = {"labels": "y", "input_ids": "x"}, {"input_ids": "x", "labels": "y", "position_ids": "position_ids"}
    assert list(load(named(one)).canonical()["output"]["names"].items()) == [("input_ids", "x"), ("labels", "y")]
    positions = sections(CHAT, output={"columns": "labels", "names": other, "position_ids_mode": "doc_reset"})
    assert load(positions).canonical()["output"]["names"] == {"input_ids": "x", "labels": "y"}


@pytest.mark.parametrize("column", ["seq_lens", "label", "loss_mask", "Labels"])
def test_a_name_for_a_column_that_is_not_written_is_refused(column: str) -> None:
    problem = the_problem(named({column: "x"}), f"output.names.{column}")
    assert problem == f"found {column!r}, which is not written; columns here: input_ids, labels"
    the_problem(sections(TEXT, output={"names": {"loss_mask": "mask"}}), "output.names.loss_mask")


@pytest.mark.parametrize("name", ["a b", "1a", "_a", "", "a/b", "a.b", "é", "a\n", "../a"])
def test_names_are_plain_words(name: str) -> None:
    assert "letters, digits and '_'" in the_problem(named({"labels": name}), "output.names.labels")


@pytest.mark.parametrize("name", ["domain", "position_ids", "seq_lens", "attention_mask", "offsets", "Meta"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    assert "reserved" in the_problem(named({"labels": name}), "output.names.labels")


@pytest.mark.parametrize("names", [{"labels": "Input_IDs"}, {"labels": "input_ids", "input_ids": "x"}])
def test_a_column_does_not_take_the_name_of_another(names: dict[str, str]) -> None:
    assert "names column 'input_ids' already" in the_problem(named(names), "output.names.labels")


def test_two_columns_do_not_get_one_name() -> None:
    problem = the_problem(named({"input_ids": "x", "labels": "X"}), "output.names.labels")
    assert "names column 'input_ids' already; columns become file names" in problem
    pair = sources({"output": {"names": {"a_mask": "b"}}}, a=CHAT, b=CHAT)
    assert "names column 'b' already" in the_problem(pair, "output.names.a_mask")


# Character limits


def test_char_limits_act_only_on_plain_text_that_is_all_trained() -> None:
    title = {"field": "title", "action": "train"}
    assert load(sections(title, TEXT, title)).char_filter_fields == ("title", "text")
    assert load(sections(PROMPT, TEXT)).char_filter_fields == ()
    assert load(sections({**TEXT, "template": True})).char_filter_fields == ()
    listed = {"sections": [TEXT], "list_field": True}
    assert load(sources(a=listed, b=title, c=CHAT, d=VALUE)).char_filter_fields == ("title",)


@pytest.mark.parametrize(
    "other",
    [
        {"sections": [PROMPT, TEXT]},
        {"sections": [TEXT], "list_field": True},
        {"sections": [{**VALUE, "field": "text"}]},
    ],
)
def test_a_field_is_not_limited_in_one_source_and_free_in_another(other: dict[str, Any]) -> None:
    (problem,) = problems(sources(a=TEXT, b=other)).values()
    assert "'text'" in problem
    assert "min_chars" in problem
    assert "'a'" in problem


def test_max_chars_is_not_below_min_chars() -> None:
    assert load(sections(TEXT, preprocessing={"min_chars": 7, "max_chars": 7})).preprocessing.max_chars == 7
    below = sections(TEXT, preprocessing={"min_chars": 7, "max_chars": 6})
    assert "min_chars, which is 7" in the_problem(below, "preprocessing.max_chars")
    the_problem(sections(TEXT, preprocessing={"max_chars": 49}), "preprocessing.max_chars")
    the_problem(sections(TEXT, preprocessing={"min_chars": 2_000_001}), "preprocessing.max_chars")


def test_max_items_zero_hints_at_null() -> None:
    assert "null means no limit" in the_problem(
        sections(TEXT, preprocessing={"max_items": 0}), "preprocessing.max_items"
    )


# Formats and dtypes


def test_formats_are_one_or_several() -> None:
    assert load(sections(TEXT, output={"storage_format": "tfrecord"})).output.formats == ("tfrecord",)
    assert load(sections(TEXT, output={"storage_format": ["bin", "tfrecord"]})).output.formats == ("bin", "tfrecord")


def test_labels_for_a_reader_of_masks_are_warned_of() -> None:
    labels = {"storage_format": ["bin", "npy"], "columns": "labels"}
    (warning,) = load(sections(TEXT, output=labels)).warnings
    assert "'npy': OLMo-core reads a mask, and no labels: use columns 'loss_mask'" in warning
    assert load(sections(TEXT, output=labels | {"columns": "loss_mask"})).warnings == []


@pytest.mark.parametrize("given", ["csv", [], ["bin", "bin"], ["bin", 3], None, {"bin": True}, [["bin"]]])
def test_other_formats_are_refused(given: object) -> None:
    problem = the_problem(sections(TEXT, output={"storage_format": given}), "output.storage_format")
    assert "'bin', 'tfrecord'" in problem


def test_dtypes_are_those_asked_for() -> None:
    dtype = {"a": "uint16", "a_mask": "bool", "r": "float64"}
    config = load(sources({"output": {"dtype": dtype}}, a=CHAT, r=VALUE))
    assert config.columns() == dtype
    labels = {"columns": "labels", "dtype": {"input_ids": "uint32", "labels": "int64"}}
    assert load(sections(TEXT, output=labels)).columns() == {"input_ids": "uint32", "labels": "int64"}


def test_megatron_has_no_code_for_some_dtypes() -> None:
    for dtype in ALLOWED_DTYPES["token ids"]:
        given = sections(TEXT, output={"storage_format": ["bin", "megatron"], "dtype": {"sequence": dtype}})
        if dtype in CODES:
            assert load(given).columns() == {"sequence": dtype}
        else:
            wanted = f"found {dtype!r}; the format 'megatron' has all dtypes but uint32, uint64, float16"
            assert the_problem(given, "output.dtype.sequence") == wanted
    every = {dtype for dtypes in ALLOWED_DTYPES.values() for dtype in dtypes}
    assert every - CODES.keys() == set(FORMATS["megatron"].unknown_dtypes)


def test_a_shard_of_mds_has_less_than_4_gib() -> None:
    output = {"storage_format": "mds", "max_tokens_per_shard": 7 * 2**27, "dtype": {"loss_mask": "bool"}}
    assert load(sections(TEXT, output=output)).output.formats == ("mds",)
    problem = the_problem(sections(CHAT, output=output), "output.max_tokens_per_shard")
    assert problem == (
        f"found {7 * 2**27}, of 5 bytes each; at most {7 * 2**29 // 5}, "
        f"because a shard of 'mds' has at most {7 * 2**29} bytes of values"
    )
    assert load(sections(CHAT, output={**output, "storage_format": "bin"})).output.formats == ("bin",)


def test_dtype_may_name_a_mask_that_is_left_out() -> None:
    assert load(sections(TEXT, output={"dtype": {"loss_mask": "bool"}})).columns() == {"sequence": "int32"}
    prompts = {"output": {"dtype": {"prompts_mask": "bool"}}}
    assert list(load(sources(prompts, prompts=PROMPT, answers=TEXT)).columns()) == ["prompts", "answers"]


def test_dtype_of_no_column_names_the_nearest() -> None:
    problem = the_problem(sections(TEXT, output={"dtype": {"loss_masks": "bool"}}), "output.dtype.loss_masks")
    known = "sequence, loss_mask, attention_mask, position_ids, seq_lens"
    assert problem == f"unknown column 'loss_masks'; did you mean 'loss_mask'? known: {known}"
    labels = {"columns": "labels", "dtype": {"loss_mask": "bool"}}
    assert "known: input_ids, labels" in the_problem(sections(TEXT, output=labels), "output.dtype.loss_mask")
    renamed = sources({"output": {"dtype": {"a_mask": "bool"}}}, a={"sections": [CHAT], "mask_key": "m"})
    the_problem(renamed, "output.dtype.a_mask")
    the_problem(sources({"output": {"dtype": {"r_mask": "bool"}}}, a=CHAT, r=VALUE), "output.dtype.r_mask")


@pytest.mark.parametrize(
    ("column", "allowed", "refused"),
    [
        (
            "a",
            ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"],
            ["bool", "float16", "float32"],
        ),
        ("a_mask", ["bool", "uint8", "int64", "uint64"], ["float16", "float32", "float64"]),
        ("r", ["int8", "uint64", "float16", "float32", "float64"], ["bool"]),
    ],
)
def test_dtypes_fit_what_the_column_holds(column: str, allowed: list[str], refused: list[str]) -> None:
    for dtype in allowed:
        assert load(sources({"output": {"dtype": {column: dtype}}}, a=CHAT, r=VALUE)).columns()[column] == dtype
    for dtype in refused:
        problem = the_problem(
            sources({"output": {"dtype": {column: dtype}}}, a=CHAT, r=VALUE), f"output.dtype.{column}"
        )
        assert f"found {dtype!r}" in problem
        assert allowed[-1] in problem


@pytest.mark.parametrize("dtype", ["uint8", "uint64", "bool", "float32"])
def test_labels_are_signed(dtype: str) -> None:
    given = sections(TEXT, output={"columns": "labels", "dtype": {"labels": dtype}})
    assert "int8, int16, int32, int64" in the_problem(given, "output.dtype.labels")


def test_vocabulary_must_fit_the_ids() -> None:
    narrow = load(sections(CHAT, output={"dtype": {"sequence": "int16", "loss_mask": "bool"}}))
    narrow.check_vocabulary(32767)
    with pytest.raises(ConfigError) as caught:
        narrow.check_vocabulary(151664)
    assert str(caught.value) == (
        "output.dtype.sequence is int16, which holds ids up to 32767; "
        "this tokenizer has ids up to 151664: use int32 or uint32"
    )


@pytest.mark.parametrize(
    ("dtype", "holds", "use"),
    [("int8", 127, "uint8 or int16"), ("uint8", 255, "int16 or uint16"), ("uint16", 65535, "int32 or uint32")],
)
def test_vocabulary_borders_and_the_next_wider_dtype(dtype: str, holds: int, use: str) -> None:
    config = load(sections(TEXT, output={"dtype": {"sequence": dtype}}))
    config.check_vocabulary(holds)
    with pytest.raises(ConfigError, match=f"up to {holds}; .* up to {holds + 1}: use {use}"):
        config.check_vocabulary(holds + 1)


def test_vocabulary_hint_counts_a_dtype_that_just_fits() -> None:
    with pytest.raises(ConfigError, match=r"use uint8 or int16$"):
        load(sections(TEXT, output={"dtype": {"sequence": "int8"}})).check_vocabulary(255)


def test_vocabulary_must_fit_labels_and_lists_too_but_not_values() -> None:
    labels = {"columns": "labels", "dtype": {"input_ids": "uint16", "labels": "int16"}}
    with pytest.raises(ConfigError, match=r"output\.dtype\.labels is int16.*: use int32 or int64$"):
        load(sections(TEXT, output=labels)).check_vocabulary(40_000)
    listed = {"sections": [TEXT], "list_field": True}
    dtype = {"output": {"dtype": {"a": "int8", "b": "int8", "r": "int8"}}}
    with pytest.raises(ConfigError) as caught:
        load(sources(dtype, a=CHAT, b=listed, r=VALUE)).check_vocabulary(1000)
    assert [line.split()[0] for line in str(caught.value).split("\n")] == ["output.dtype.a", "output.dtype.b"]


# What the error says


@pytest.mark.parametrize(
    ("given", "at", "near", "known"),
    [
        (sections(TEXT, preprocesing={}), "preprocesing", "preprocessing", "mask_default"),
        (sections(TEXT, preprocessing={"max_seq_length": 5}), "preprocessing.max_seq_length", "max_seq_len", "shift"),
        (sections(TEXT, output={"DTYPE": {}}), "output.DTYPE", "dtype", "storage_format"),
        (sections({**TEXT, "templates": True}), "input.sections[0].templates", "template", "action"),
        (sources(a={"sections": [CHAT], "maskkey": "m"}), "input.sources.a.maskkey", "mask_key", "list_field"),
        (
            sources(sections={"sections": [{**CHAT, "fields": "x"}]}),
            "input.sources.sections.sections[0].fields",
            "field",
            "action",
        ),
        ({"input": {"sections": [TEXT], "source": {}}}, "input.source", "sources", "sections"),
    ],
)
def test_unknown_keys_name_the_nearest_key_of_their_level(
    given: dict[str, Any], at: str, near: str, known: str
) -> None:
    problem = the_problem(given, at)
    assert problem.startswith(f"unknown key {at.rpartition('.')[2]!r}; did you mean {near!r}? known: ")
    assert known in problem


def test_unknown_keys_of_another_part_are_sent_there() -> None:
    problem = the_problem(sections(TEXT, max_seq_len=5), "max_seq_len")
    assert "did you mean" not in problem
    assert "it belongs in 'preprocessing'" in problem


def test_wrong_choices_name_what_was_found_what_is_allowed_and_the_nearest() -> None:
    problem = the_problem(sections({**TEXT, "action": "trian"}), "input.sections[0].action")
    assert problem == "found 'trian'; did you mean 'train'? allowed: 'train', 'mask', '$role', '$last', 'value'"


def test_found_values_are_shortened() -> None:
    assert len(the_problem(sections(TEXT, mask_default="x" * 10_000), "mask_default")) < 200
    assert len(the_problem(sections(TEXT, preprocessing={"shift": list(range(10_000))}), "preprocessing.shift")) < 200


def test_all_problems_come_at_once() -> None:
    found = problems(
        {
            "inputs": {},
            "input": {"sections": [{"field": "", "action": "no"}, {"field": "a", "action": "$role"}]},
            "mask": {"user": "x", "a b": "y"},
            "preprocessing": {"min_chars": 9, "max_chars": 8, "max_items": 0, "max_len": 1, "shift": 1},
            "output": {"storage_format": "hdf5", "dtype": {"a": "long"}},
        }
    )
    assert set(found) == {
        "inputs",
        "input.sections[0].field",
        "input.sections[0].action",
        "input.sections[1].action",
        "mask.user",
        "mask['a b']",
        "preprocessing.max_chars",
        "preprocessing.max_items",
        "preprocessing.max_len",
        "preprocessing.shift",
        "output.storage_format",
        "output.dtype.a",
    }


def test_parts_are_checked_together_beside_other_problems() -> None:
    given = sections(TEXT, maks={}, preprocessing={"shift": True}, output={"dtype": {"x": "bool", "sequence": "bool"}})
    assert set(problems(given)) == {"maks", "preprocessing.shift", "output.dtype.x", "output.dtype.sequence"}


def test_parts_are_checked_together_beside_a_wrong_part_where_it_says_nothing_of_it() -> None:
    output = {"dtype": {"x": "bool"}, "names": {"seq_lens": "lengths"}}  # there may be seq_lens: it is not known
    given = sections(TEXT, preprocessing={"max_seq_len": 0, "packing_strategy": "bfd"}, output=output)
    assert set(problems(given)) == {"preprocessing.max_seq_len", "output.dtype.x"}


def test_what_is_missing_is_said_in_one_sentence_of_what_it_means() -> None:
    assert the_problem(sections({"action": "train"}), "input.sections[0].field") == (
        "missing. Key of the record that is read."
    )
    fim = sections(TEXT, output={"fim": {"rate": 0.5, "sentinels": ["<a>", "<b>"]}})
    said = the_problem(fim, "output.fim.sentinels[2]")
    assert said == "missing. The 3 tokens before prefix, middle and suffix."


# Files and text


def write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "mine.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_header_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(sections(TEXT, mask_default="no")))
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_json(str(path))
    assert str(caught.value).startswith(f"{path}: 1 problem in the config\n  mask_default: ")


def test_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert PipelineConfig.from_json(write(tmp_path, b"\xef\xbb\xbf" + json.dumps(sections(TEXT)).encode())).columns()


def test_syntax_errors_name_file_line_and_column(tmp_path: Path) -> None:
    path = write(tmp_path, '{"input": {},\n "mask": {,}\n}')
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_json(path)
    assert str(caught.value).startswith(f"{path}: line 2, column 11: not JSON: ")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"version": ' + "1" * 5000 + "}", "[" * 900 + "]" * 900])
def test_text_that_is_not_usable_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^mine: "):
        PipelineConfig.from_text(text, "mine")


@pytest.mark.parametrize(("content", "said"), [(b'{"input": "\xff"}', "not UTF-8"), (None, "cannot be read")])
def test_files_that_cannot_be_read_are_config_errors(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "absent.json" if content is None else write(tmp_path, content)
    with pytest.raises(ConfigError, match=said) as caught:
        PipelineConfig.from_json(path)
    assert str(path) in str(caught.value)


def test_a_directory_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        PipelineConfig.from_json(tmp_path)


def test_duplicate_keys_are_an_error_with_their_place() -> None:
    mask = '{"user": "mask", "user": "train"}'
    text = f'{{"mask": {mask}, "input": {{"sections": [{{"field": "a", "field": "b", "action": "no"}}]}}}}'
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_text(text)
    header, *lines = str(caught.value).split("\n")
    assert header == "config: 3 problems in the config"
    assert {line.strip().split("; ")[0] for line in lines} == {
        "mask.user: duplicate key",
        "input.sections[0].field: duplicate key",
        "input.sections[0].action: found 'no'",
    }


def test_the_same_key_in_two_objects_is_no_duplicate() -> None:
    assert PipelineConfig.from_text(json.dumps(sections(TEXT, TEXT))).columns() == {"sequence": "int32"}


# The JSON Schema


def test_schema_describes_every_field() -> None:
    schema = PipelineConfig.json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for part in (schema, *schema["$defs"].values()):
        assert part["additionalProperties"] is False
        assert all(field.get("description") for field in part["properties"].values())
    assert "](" not in json.dumps(schema)  # the texts are those of the docs, without their links


def test_schema_agrees_with_the_config_reader() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = PipelineConfig.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    accepts = jsonschema.Draft202012Validator(schema).is_valid
    for path in ROOT.glob("configs/*.json"):
        assert accepts({"$schema": "./schema.json", **json.loads(path.read_text())}), path
    assert accepts(sections({**CHAT, "template": "message"}, output={"storage_format": ["tfrecord", "bin"]}))
    assert accepts(load(sources(a=CHAT, r=VALUE)).canonical())
    refused: tuple[dict[str, Any], ...] = (
        sections(TEXT, bogus=1),
        sections(TEXT, version=2),
        sections(TEXT, output={"storage_format": "hdf5"}),
        sections(TEXT, output={"storage_format": ["bin", "bin"]}),
        sections(TEXT, preprocessing={"max_items": 0}),
        sources(**{"a b": CHAT}),
        {"mask": {}},
    )
    for wrong in refused:
        assert not accepts(wrong), wrong


def test_every_whole_number_has_a_largest() -> None:
    schema = PipelineConfig.json_schema()
    numbers = {
        name: kind
        for part in schema["$defs"].values()
        for name, field in part["properties"].items()
        for kind in (field, *field.get("anyOf", ()))
        if kind.get("type") == "integer" and "const" not in kind
    }
    assert {"max_seq_len", "padding", "ngram", "seed"} <= set(numbers)
    assert [name for name, kind in numbers.items() if not {"maximum", "exclusiveMaximum"} & set(kind)] == []
    found = the_problem(sections(TEXT, preprocessing={"max_seq_len": 10**30}), "preprocessing.max_seq_len")
    assert found == f"found {10**30}; must be less than or equal to {1 << 53}"


# The errors


def test_errors_share_a_base_and_pickle_with_their_message() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BeamPrepError)]
    assert len(kinds) == 12
    for kind in kinds:
        copy = pickle.loads(pickle.dumps(kind("what happened")))
        assert type(copy) is kind
        assert str(copy) == "what happened"
        assert kind.__name__ in (errors.__doc__ or "")
    assert issubclass(ConfigError, ValueError)


def test_config_does_not_import_beam() -> None:
    code = "import sys, beam_prep.config; assert 'apache_beam' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
