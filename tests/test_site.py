"""The docs as a site: every page is in it, its links are those of the site, and what is wrong with a site is found.

`make docs` builds the site itself; that needs mkdocs, which is not needed here.
"""

import re
from pathlib import Path

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
    told = ["open" if name == "readers.dataset.open_dataset" else name for name in told]
    assert sorted(told) == sorted([*bp.__all__, "inspect.picture.picture", "errors"])


def test_what_is_wrong_with_a_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there"><a href="c.html"><a href="b.html#here">')
    (tmp_path / "b.html").write_text('<p id="there"><script src="https://x.y/z.js">')
    assert [each.text for each in site.problems(tmp_path)] == [
        "c.html leads nowhere",
        "b.html#here: the page has no such place",
        "loads https://x.y/z.js from another host",
    ]
