"""The pages of `beam-prep inspect --html` in a browser: they are quiet, true, quick, and usable without a mouse."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import beam_prep as bp
from beam_prep.chat.conversations import CONVERSATIONS
from beam_prep.inspect.output import inspect
from beam_prep.preview import preview, template
from beam_prep.readers.dataset import Dataset
from tests.conftest import ROOT, config_of

TOKENIZER = ROOT / "examples" / "tokenizer"
Open = Callable[..., Any]


def make(folder: Path, name: str, lines: list[str], tokenizer: Path = TOKENIZER, **output: Any) -> Dataset:
    """The output of a config of the project."""
    (folder / "in.jsonl").write_text("\n".join(lines), "utf-8")
    job = bp.Pipeline(
        bp.PipelineConfig.from_dict(config_of(name, output=output)),
        [str(folder / "in.jsonl")],
        output_dir=folder / "out",
        tokenizer_path=tokenizer,
        max_reject_rate=1.0,
        max_no_loss_rate=1.0,
    )
    job.run(["--runner=FnApiRunner"])
    return bp.open(folder / "out")


def example(name: str) -> list[str]:
    return (ROOT / "examples" / "data" / f"{name}.jsonl").read_text("utf-8").strip().split("\n")


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Path]:
    """60 chats of several domains and three records that are left out; the output and its page."""
    folder = tmp_path_factory.mktemp("chats")
    odd = ['{"messages": 3}', '{"messages": [], "x": "</script><b id=evil>\\u202e"}', "no </script><script>alert(1)"]
    output = make(folder, "sft_conversation", [*example("chat")[:60], *odd], domain_key="domain")
    inspect(output.path, html=folder / "page.html")
    return output, folder / "page.html"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a preview of chats, with roles."""
    folder = tmp_path_factory.mktemp("before")
    (folder / "in.jsonl").write_text("\n".join([*example("chat")[:60], "{}", "no json"]), "utf-8")
    config = ROOT / "configs" / "sft_conversation.json"
    preview(str(folder / "in.jsonl"), config, TOKENIZER, html=folder / "page.html")
    return folder / "page.html"


def articles(page: Any) -> list[int]:
    """The numbers of the rows that are in the document."""
    return [int(each) for each in page.eval_on_selector_all("article", "all => all.map(one => one.dataset.row)")]


def choose(page: Any, **values: str) -> str:
    """Sets filters, and gives the line that says how many rows match."""
    page.click("#clear")
    for name, value in values.items():
        control = page.locator(f"#{name.replace('_', '-')}")
        if control.evaluate("one => one.tagName") == "SELECT":
            control.select_option(value)
        else:
            control.fill(value)
            control.dispatch_event("change")
    return str(page.inner_text("#found"))


def test_what_it_shows_is_what_the_manifest_and_the_rows_say(chats: tuple[Dataset, Path], opened: Open) -> None:
    output, path = chats
    page = opened(path)
    found = page.eval_on_selector_all("#numbers > div", "all => all.map(one => [one.dataset.key, one.innerText])")
    shown = {key: int(re.split(r"\n", text)[1].split(" ")[0].replace(",", "")) for key, text in found}
    totals, ledger = output.manifest["totals"], output.manifest["ledger"]
    assert shown == {
        "rows": totals["rows"],
        "tokens in input_ids": totals["tokens"]["input_ids"],
        "trained in labels": totals["trained"]["labels"],
        "records read": ledger["read"],
        **{f"{kind}: {reason}": count for kind in ("dropped", "rejected") for reason, count in ledger[kind].items()},
    }
    page.select_option("#size", "200")
    assert articles(page) == list(range(63))
    for number, row in enumerate(output):
        text = f"article[data-row='{number}'] .text"
        assert page.text_content(text) == output.decode(number)
        trained = page.eval_on_selector_all(f"{text} mark .k", "all => all.map(one => Number(one.dataset.i))")
        assert trained == row["labels"][row["labels"] != -100].tolist()
    assert page.query_selector("#evil") is None
    assert "no </script><script>alert(1)" in page.inner_text("#rows")


def test_a_page_of_a_template_has_each_conversation(tmp_path: Path, opened: Open) -> None:
    refuses = "{% if messages[0].role == 'developer' %}{{ raise_exception('no developers') }}{% endif %}"
    (tmp_path / "refuses.jinja").write_text((TOKENIZER / "chat_template.jinja").read_text("utf-8") + refuses, "utf-8")
    template(TOKENIZER, str(tmp_path / "refuses.jinja"), html=tmp_path / "page.html")
    page = opened(tmp_path / "page.html")
    page.select_option("#size", "50")
    assert page.locator("article h2").all_inner_texts() == [f"refuses.jinja · {name}" for name in CONVERSATIONS]
    marked = page.locator("article").nth(0).locator("mark").all_text_contents()
    assert "".join(marked) == "Yes, I am.<|im_end|>"
    assert choose(page, kind="rejected: template_error").startswith("1 of 20 shown here")


def test_filters_give_what_they_say(chats: tuple[Dataset, Path], opened: Open) -> None:
    output, path = chats
    page = opened(path)
    rows = list(output)
    lengths = [len(row["input_ids"]) for row in rows]
    share = [100 * (row["labels"] != -100).mean() for row in rows]
    domain = output.domains[1]
    texts = [str(output.decode(row)).lower() for row in range(len(rows))]
    middle = sorted(lengths)[30]
    for values, wanted in (
        ({}, 63),
        ({"kind": "rows"}, 60),
        ({"kind": "left"}, 3),
        ({"kind": "rejected: bad_json"}, 1),
        ({"domain": f"={domain}"}, len(output.domain(domain))),
        ({"tokens_max": str(middle)}, sum(length <= middle for length in lengths)),
        (
            {"tokens_min": str(middle), "share_min": "40"},
            sum(n >= middle and s >= 40 for n, s in zip(lengths, share, strict=True)),
        ),
        ({"search": "YOU"}, sum("you" in text for text in texts)),
        ({"search": "wanted a list"}, 1),
        ({"search": ".*"}, sum(".*" in text for text in texts)),
        ({"search": "no such words"}, 0),
    ):
        assert choose(page, **values).startswith(f"{wanted} of 63 shown here"), values
    assert "Nothing matches" in page.inner_text("#rows")
    choose(page, kind="rows", order="longest", size="200")
    assert [lengths[number] for number in articles(page)] == sorted(lengths, reverse=True)
    choose(page, search="you")
    hits = page.eval_on_selector_all(".hit", "all => all.map(one => one.textContent).join(' ').toLowerCase()")
    assert "you" in hits


def test_rows_of_a_role(before: Path, opened: Open) -> None:
    page = opened(before)
    options = page.eval_on_selector_all("#role option", "all => all.map(one => [one.value, one.innerText])")
    roles = {text.split(" ")[0]: value for value, text in options}
    assert {"user", "assistant", "system"} <= roles.keys()
    records = [json.loads(line) for line in example("chat")[:60]]
    has = sum(any(message["role"] == "system" for message in record["messages"]) for record in records)
    assert choose(page, role=roles["system"]).startswith(f"{has} of 62 shown here")


def test_all_of_it_works_with_the_keyboard(before: Path, opened: Open) -> None:
    page = opened(before)
    press = page.keyboard.press
    where = "() => document.activeElement.dataset.row"
    press("j")
    assert page.evaluate(where) == "0"
    for _ in range(10):
        press("j")  # the eleventh row is on the next page
    assert page.evaluate(where) == "10"
    assert "page 2 of 7" in page.inner_text("#found")
    press("k")
    assert page.evaluate(where) == "9"
    press("n")
    assert articles(page) == list(range(10, 20))
    press("p")
    press("j")
    press("Tab")
    tip = page.locator("#tip")
    assert tip.inner_text().startswith("token 1 of ")
    press("ArrowRight")
    press("ArrowRight")
    assert re.match(r'token 3 of \d+ · id \d+ · ".*" · (not )?trained', tip.inner_text())
    assert page.inner_text("#spoken") == tip.inner_text()
    press("End")
    assert re.match(r"token (\d+) of \1 ", tip.inner_text())
    press("Escape")
    assert tip.is_hidden()


def test_chosen_is_beside_rejected_where_there_is_room(tmp_path: Path, opened: Open) -> None:
    output = make(tmp_path, "dpo", example("preference"))
    inspect(output.path, html=tmp_path / "page.html")
    for width, beside in ((1300, True), (500, False)):
        page = opened(tmp_path / "page.html", width=width)
        left, right = (page.locator(".pair > section").nth(place).bounding_box() for place in (0, 1))
        assert (left["y"] == right["y"]) == beside
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_an_empty_page_and_one_of_a_very_long_row(tmp_path: Path, opened: Open) -> None:
    output = make(tmp_path, "pretrain", [json.dumps({"text": "word \t\n<b>" * 9000})])
    inspect(output.path, html=tmp_path / "page.html")
    page = opened(tmp_path / "page.html")
    total = page.evaluate("() => Number(document.querySelector('main .text').dataset.size)")
    assert total > 2000
    assert page.locator("main .text .k").count() <= 3000
    while page.locator("main .text button").count():
        page.click("main .text button")
    assert page.locator("main .text .k").count() == total
    assert page.text_content("main .text") == output.decode(0)
    inspect(output.path, html=tmp_path / "empty.html", grep="nowhere")
    assert "There are no rows" in opened(tmp_path / "empty.html").inner_text("#rows")
