"""The site of the docs. mkdocs calls the functions `on_...`; as a program, this module checks the built site.

    mkdocs build --strict && python -m tools.site build/site

Pages in docs/ link to files of the repository, as on GitHub. The site has a page for each such file, in `source/`.
"""

import json
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
# Code blocks and inline code match first, because they hold no links.
LINK = re.compile(
    r"^ *(?P<fence>`{3,}).*?^ *(?P=fence)$|`[^`\n]+`|(?<=\]\()(?![a-z]+:|#)(?P<path>[^)\s#]+)(?=[#)])", re.M | re.S
)
SHOWN = 16_000
"""Most characters of a file that its page shows."""

_LANGUAGES = {".py": "python", ".json": "json", ".jsonl": "json", ".jinja": "jinja", ".toml": "toml", ".yml": "yaml"}


def uri_of(path: str) -> str:
    """The path in the site's sources of a file or folder of the repository.

    >>> uri_of("docs/masks.md"), uri_of("README.md"), uri_of("configs/dpo.json")
    ('masks.md', 'source/README.md', 'source/configs/dpo.json.md')
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"source/{path}/index.md"
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def targets(text: str, path: str) -> list[str]:
    """The files and folders that a page links to, as paths from the root of the repository."""
    links = [match["path"] for match in LINK.finditer(text) if match["path"]]
    return [posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(link))) for link in links]


def with_links_of_the_site(text: str, path: str, uri: str) -> str:
    """A page of the repository with links for the site; `uri`: its path in the site's sources."""

    def link(match: re.Match[str]) -> str:
        if not match["path"]:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(match["path"])))
        return posixpath.relpath(uri_of(target), posixpath.dirname(uri))

    return LINK.sub(link, text)


def source_pages() -> dict[str, str]:
    """Path -> Markdown of every file and folder outside docs/ that docs, or one of these pages, link to."""
    found: dict[str, str] = {}
    pages = [(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in (ROOT / "docs").rglob("*.md")]
    while pages:
        path, text = pages.pop()
        for target in targets(text, path):
            if not target.startswith(("docs/", "..")) and target not in found and (ROOT / target).exists():
                found[target] = _page_of(target)
                pages.append((_linked_from(target), found[target]))
    return found


def _linked_from(path: str) -> str:
    """The path to which the links of a source page are relative; links of a folder are relative to the folder."""
    return f"{path}/index.md" if (ROOT / path).is_dir() else path


def _page_of(path: str) -> str:
    """A file, or a list of a folder's files, as Markdown."""
    file = ROOT / path
    if file.is_dir():
        inner = sorted(each for each in file.iterdir() if not each.name.startswith((".", "__pycache__")))
        return "\n".join([f"# `{path}/`", "", *(f"* [{each.name}]({each.name})" for each in inner)])
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        return _notebook(json.loads(text))
    shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}\n... ({len(text):,} characters in all)"
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", shown))])
    return f"# `{path}`\n\n{fence}{_LANGUAGES.get(file.suffix, 'text')}\n{shown}\n{fence}\n"


def _notebook(notebook: dict[str, Any]) -> str:
    """A notebook as Markdown: text, code, and results of the code."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            plain = "".join(output.get("text", data.get("text/plain", "")))
            svg = "".join(data.get("image/svg+xml", ""))
            parts.append(re.sub(r"\n\s*", " ", svg) if svg else f"```text\n{plain}\n```")
    return "\n\n".join(parts)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of files outside docs/."""
    from mkdocs.structure.files import File

    for path, text in source_pages().items():
        files.append(File.generated(config, uri_of(path), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Changes the links of a page for the site."""
    uri = page.file.src_uri
    if not uri.startswith("source/"):
        return with_links_of_the_site(markdown, f"docs/{uri}", uri)
    paths = {uri_of(path): _linked_from(path) for path in source_pages()}
    return with_links_of_the_site(markdown, paths[uri], uri)


class _Page(HTMLParser):
    """The ids and links of an HTML page, and the files that a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given["href"])
        if "src" in given:
            self.loaded.append(given["src"])


class Problem(NamedTuple):
    """A problem of a page."""

    page: str
    text: str


def problems(site: Path) -> Iterator[Problem]:
    """Broken links, also to anchors, and files that a browser would load from another host."""
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        for url in page.loaded:
            if urlsplit(url).scheme not in ("", "data") or urlsplit(url).netloc:
                yield Problem(name, f"loads {url} from another host")
        for url in _relative([*page.links, *page.loaded]):
            parts = urlsplit(url)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if name == "404.html" or parts.path.startswith("/"):  # such links are relative to the root of the site
                continue
            if not target.exists():
                yield Problem(name, f"{url} leads nowhere")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield Problem(name, f"{url}: the page has no such place")
    for path in sorted(site.rglob("*.css")):
        for url in re.findall(r"""url\(["']?((?:https?:)?//[^)"']+)""", path.read_text(encoding="utf-8")):
            yield Problem(path.relative_to(site).as_posix(), f"loads {url} from another host")


def _relative(urls: Iterable[str]) -> list[str]:
    return [url for url in urls if not urlsplit(url).scheme and not urlsplit(url).netloc]


def main() -> int:
    """Checks the site in a folder. Returns the exit code."""
    found = list(problems(Path(sys.argv[1])))
    for problem in found:
        print(f"{problem.page}: {problem.text}", file=sys.stderr)
    if not found:
        print(f"{sys.argv[1]}: every link leads somewhere, and nothing is loaded from another host")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
