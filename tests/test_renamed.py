"""An old name is an error that says the new one, wherever a user may still have it."""

import re
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep import cli, renamed
from beam_prep.errors import ConfigError

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("old", "new"), renamed.OPTIONS.items())
def test_an_old_option_names_the_new_one(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "in.jsonl", "-o", "out", "-c", "c.json", "--tokenizer_path", "t", f"--{old}", "3"]) == 2
    assert f"'--{old}'" in (said := capsys.readouterr().err)
    assert f"it is --{new} now" in said


@pytest.mark.parametrize(("old", "what_to_do"), renamed.GONE_OPTIONS.items())
def test_an_option_that_is_gone_says_what_to_do(old: str, what_to_do: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "in.jsonl", "-o", "out", "-c", "c.json", "--tokenizer_path", "t", f"--{old}", "x"]) == 2
    assert what_to_do in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new"), renamed.CONFIG_KEYS.items())
def test_an_old_key_of_the_config_names_the_new_one(old: str, new: str) -> None:
    part, _, key = old.partition(".")
    config: dict[str, Any] = {"input": {"sections": [{"field": "text", "action": "train"}]}, part: {key: "drop"}}
    with pytest.raises(ConfigError, match=re.escape(f"it is {new} now")):
        bp.PipelineConfig.from_dict(config)


@pytest.mark.parametrize(("old", "new"), renamed.PUBLIC_NAMES.items())
def test_an_old_public_name_names_the_new_one(old: str, new: str) -> None:
    with pytest.raises(AttributeError, match=f"bp.{new}"):
        getattr(bp, old)
    assert getattr(bp, new)


def test_an_output_of_an_earlier_version_is_sound_and_up_to_date(tmp_path: Path, tokenizer_path: str) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text('{"text": "one two three four", "id": "a"}\n')
    sections = [{"field": "text", "action": "train"}]
    config = bp.PipelineConfig.from_dict(
        {"input": {"sections": sections}, "output": {"keep_fields": ["id"]}, "preprocessing": {"min_chars": 1}}
    )
    bp.Pipeline(config, source, out, tokenizer_path).run()
    written = (out / "manifest.json").read_text()
    for old, new in (*renamed.CONFIG_KEYS.items(), ("options.reject_text", "options.max_reject_chars")):
        names = [f'"{name.partition(".")[2]}": ' for name in (new, old)]
        assert names[0] in written
        written = written.replace(names[0], names[1])
    (out / "manifest.json").write_text(written)
    assert cli.main(["verify", str(out)]) == 0
    bp.Pipeline(config, source, out, tokenizer_path).run()  # without overwrite
    assert (out / "manifest.json").read_text() == written


def test_the_docs_list_every_name() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| (.+) \|$", (ROOT / "docs/renamed.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    wanted = {f"--{old}": f"`--{new}`" for old, new in renamed.OPTIONS.items()}
    wanted |= {old: f"`{new}`" for old, new in renamed.CONFIG_KEYS.items()}
    wanted |= {f"bp.{old}": f"`bp.{new}`" for old, new in renamed.PUBLIC_NAMES.items()}
    wanted |= {f"--{old}": what for old, what in renamed.GONE_OPTIONS.items()}
    assert dict(rows) == wanted
