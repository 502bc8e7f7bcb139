"""`report.html` in a browser: quiet, true, and usable without a mouse."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_prep.cli import main
from tests.browser.test_page import example, make

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The manifest of chats of several domains, of which some were left out; and the page, made again."""
    folder = tmp_path_factory.mktemp("report")
    odd = ['{"messages": 3}', '{"messages": [], "x": "</td><b id=evil>\\u202e"}', "no </td><script>alert(1)"]
    output = make(folder, "sft_conversation", [*example("chat"), *odd], domain_key="domain")
    assert main(["report", str(output.path)]) == 0
    return dict(output.manifest), Path(output.path, "report.html")


@pytest.mark.parametrize("scheme", ["dark"])
def test_the_report_shows_the_numbers_of_the_manifest(report: Any, opened: Open, scheme: str) -> None:
    manifest, path = report
    page = opened(path, scheme, ready="main")
    cards = page.locator(".numbers b").all_inner_texts()
    totals = manifest["totals"]
    assert cards[:3] == [
        f"{totals['rows']:,}",
        f"{totals['tokens']['input_ids']:,}",
        f"{totals['trained']['labels']:,}",
    ]
    rows = page.locator("h3#domains ~ table").first.locator("tr").all_inner_texts()[1:]
    tokens = {row.split("\t")[0]: row.split("\t")[3] for row in rows}
    by_domain: dict[str, int] = {}
    for shard in manifest["shards"]:
        by_domain[shard["domain"]] = by_domain.get(shard["domain"], 0) + shard["tokens"]["input_ids"]
    assert tokens == {name: f"{count:,}" for name, count in by_domain.items()}
    width = "bar => [...bar.children].reduce((sum, part) => sum + part.offsetWidth, 0) / bar.clientWidth"
    for name in ("trained", "lengths", "time"):  # the longest bar fills its place
        widths = page.locator(f"h2#{name} ~ table").first.locator(".bar").evaluate_all(f"bars => bars.map({width})")
        assert 0.97 < max(widths) <= 1.01
    assert page.locator("#evil").count() == 0
    assert json.loads(page.locator("pre").text_content()) == manifest["config"]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
