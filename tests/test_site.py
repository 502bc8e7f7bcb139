"""The docs as a site: every page is in it, its links are those of the site, and what is wrong with a site is found.

`make docs` builds the site itself; that needs mkdocs, which is not needed here.
"""

import re
from pathlib import Path

import pytest
import yaml

import beam_prep as bp
from tests.conftest import ROOT
from tools import site


def names_in(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, dict) else nav
    assert not isinstance(parts, str)
    return {name for part in parts for name in names_in(part)}  # type: ignore[attr-defined]


def test_every_page_is_in_the_navigation() -> None:
    text = re.sub(r"!!python\S* ", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings = yaml.safe_load(text)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert names_in(settings["nav"]) == pages
    assert settings["theme"]["font"] is False


def test_every_public_name_is_in_the_reference_once() -> None:
    told = re.findall(r"^::: beam_prep\.([\w.]+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
    told = ["open" if name == "readers.open.open_dataset" else name for name in told]
    assert sorted(told) == sorted([*bp.__all__, "inspect.picture.picture", "errors"])


def test_links_are_those_of_the_site() -> None:
    text = "[a](../configs/dpo.json) [b](masks.md#weights) [c](https://x.y/z.md) [d](#here) ![e](pictures/packed.svg)"
    assert site.with_links_of_the_site(text, "docs/formats.md", "formats.md") == text.replace(
        "../configs/dpo.json", "source/configs/dpo.json.md"
    )
    assert site.with_links_of_the_site("[a](../masks.md)", "docs/decisions/walk.md", "decisions/walk.md") == (
        "[a](../masks.md)"
    )
    assert site.with_links_of_the_site("[a](docs/masks.md#weights)", "README.md", "source/README.md") == (
        "[a](../masks.md#weights)"
    )


def test_files_outside_the_docs_have_pages() -> None:
    pages = site.source_pages()
    assert {"README.md", "CONTRIBUTING.md", "configs", "configs/sft_chat.json", "examples/train_tiny.py"} <= {*pages}
    assert "[sft_chat.json](sft_chat.json)" in pages["configs"]
    assert "<svg" in pages["examples/first_look.ipynb"]
    assert all(len(text) < 2 * site.SHOWN or path.endswith((".md", ".ipynb")) for path, text in pages.items())


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="b.html#there">', None),
        ('<a href="#here"><p id="here">', None),
        ('<a href="c.html">', "c.html leads nowhere"),
        ('<a href="b.html#here">', "b.html#here: the page has no such place"),
        ('<a href="#there">', "#there: the page has no such place"),
        ('<img src="no.svg">', "no.svg leads nowhere"),
        ('<script src="https://x.y/z.js">', "loads https://x.y/z.js from another host"),
        ('<link rel="stylesheet" href="//x.y/z.css">', "loads //x.y/z.css from another host"),
    ],
)
def test_what_is_wrong_with_a_site_is_found(tmp_path: Path, body: str, problem: str | None) -> None:
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text('<p id="there">')
    assert [each.text for each in site.problems(tmp_path)] == ([] if problem is None else [problem])


def test_a_style_from_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("p {src: url('https://x.y/font.woff2')} q {src: url(font.woff2)}")
    assert [each.text for each in site.problems(tmp_path)] == ["loads https://x.y/font.woff2 from another host"]
