"""The README's code runs, and its configs are configs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from beam_prep.config import PipelineConfig
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_configs_of_the_readme_load() -> None:
    found = [json.loads(text) for text in blocks("json")]
    assert found
    for config in found:
        PipelineConfig.from_dict(config)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the checkout, to write in."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_the_code_of_the_readme_runs_from_top_to_bottom(checkout: Path) -> None:
    codes = blocks("python")
    assert len(codes) >= 4
    code = "\n\n".join(text.replace('if __name__ == "__main__":\n    main()', "main()") for text in codes)
    (checkout / "readme.py").write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "readme.py"], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "<|im_start|>" in done.stdout
    assert (checkout / "out/chat/manifest.json").exists()
    manifest = json.loads((checkout / "out/python/manifest.json").read_text())
    assert manifest["totals"]["packing"]["rows"] > 0
    assert [column["name"] for column in manifest["columns"]] == ["input_ids", "labels", "seq_lens"]


def test_the_files_that_the_readme_names_are_there() -> None:
    for path in re.findall(r"\]\(([^)#]+)\)", README):
        if not path.startswith("http"):
            assert (ROOT / path).exists(), path
    for config in re.findall(r"`(\w+\.json)` \|", README):
        assert (ROOT / "configs" / config).exists(), config


def test_the_commands_of_the_readme_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
