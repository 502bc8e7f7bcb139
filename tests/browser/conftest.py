"""A browser for the tests of pages."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import missing

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser of this machine, headless."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed: make test-browser", "REQUIRE_BROWSER")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        missing(f"no {' and no '.join(BROWSERS)} on this machine", "REQUIRE_BROWSER")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file in a tab of its own; in the end, none may have complained."""
    pages: list[Any] = []
    problems: list[str] = []

    def _opened(
        path: Path, scheme: str = "light", width: int = 1300, height: int = 900, ready: str = "html[data-ready=true]"
    ) -> Any:
        context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": height})
        page = context.new_page()
        pages.append(page)
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: problems.extend({request.url} - {path.as_uri()}))
        page.on("requestfailed", lambda request: problems.append(f"failed: {request.url}"))
        page.goto(path.as_uri())
        page.wait_for_selector(ready)
        return page

    yield _opened
    for page in pages:
        page.context.close()
    assert problems == []
