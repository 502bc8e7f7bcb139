"""A table of chat templates: which conversations each takes, what it leaves out, what is refused and why.

    python benchmarks/template_table.py                              # prints the table
    python benchmarks/template_table.py --markdown docs/templates.md
    python benchmarks/template_table.py --only qwen                  # only templates with this text in their name

Needs the templates of the test material (`--shared DIR`, or `BEAM_PREP_SHARED`), otherwise it ends with a message. The
table shows the outcome of each conversation of `beam-prep template`. `../shared/templates/judge.py` judges whether
outcomes of its own conversations are right.
"""

import argparse
import importlib.util
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from _measure import ROOT
from _page import table, write_markdown

from beam_prep.chat.conversations import CONVERSATIONS, outcome_of
from beam_prep.chat.template import ChatTemplate
from beam_prep.chat.turns import RenderedChat
from beam_prep.data.block import Reject

MARKER = "template_table"
SHARED = Path(os.environ.get("BEAM_PREP_SHARED", ROOT.parent / "shared"))
DATE = "2026-11-26"
HEADER = (
    *("template", "taken", "not written", "refused", "template raises"),
    *("contents", "arguments", "tools", "calls", "reasoning", "trained behind an answer"),
)
TALK, WITH_REASONING = "several turns", "reasoning of earlier answers"
"""The names of the conversations that show the end of a turn, and which reasoning is written."""
FORMS = {True: "parts", False: "text", None: "both"}
OF_ARGUMENTS = {True: "object", False: "string", None: "both"}


def loaded(path: Path) -> Any:
    """Imports a module of the test material."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def compiled(source: str, judge: Any) -> ChatTemplate:
    """A template with the special tokens that its source names, as the judge compiles it."""
    control = set(judge.CONTROL.findall(source))
    end = next((each for each in judge.ENDS if each in control), None)
    if "eos_token" in source or end is None:
        end = "<｜end▁of▁sentence｜>" if "｜" in source else end or "</s>"
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": end}, sorted({*control, end, "<s>"}), DATE)


def row(name: str, template: ChatTemplate) -> tuple[list[str], Counter[str]]:
    """(cells of a template, outcome -> conversations)."""
    found = {case: outcome_of(template, record) for case, record in CONVERSATIONS.items()}
    count = Counter(each.kind for each in found.values())
    refused = Counter(each.reason for each in found.values() if each.kind == "refused")
    not_written = [each for each in found.values() if each.kind == "not written"]
    lost = Counter(what for each in not_written for what in each.lost_kinds if what in ("calls", "contents"))
    with_tools = [found[case] for case, record in CONVERSATIONS.items() if "tools" in record]
    rendered = [each for each in with_tools if each.rendered is not None]
    cells = [
        name,
        str(count["taken"]),
        listed(count["not written"], lost),
        listed(count["refused"], refused),
        str(count["raises"]),
        FORMS[template.forms.parts["assistant"]],
        OF_ARGUMENTS[template.forms.objects],
        yes("tools" not in each.lost_kinds for each in rendered),
        yes("calls" not in each.lost_kinds for each in rendered),
        reasoning(found[WITH_REASONING].rendered),
        ending(template, found[TALK].rendered, CONVERSATIONS[TALK]["messages"]),
    ]
    return cells, count


def listed(count: int, why: Counter[str]) -> str:
    return f"{count}: {', '.join(sorted(why))}" if count else ""


def yes(found: Any) -> str:
    """`yes` if all are true, `no` if none, else `in part`; "" for an empty list."""
    all_of = list(found)
    return "" if not all_of else "yes" if all(all_of) else "in part" if any(all_of) else "no"


def reasoning(rendered: RenderedChat | None) -> str:
    """Whether the reasoning of two answers is written: `yes`, `in the last turn` or `no`."""
    if rendered is None:
        return ""
    lost = sum(key == "reasoning" for _, key in rendered.not_rendered)
    return ("yes", "in the last turn", "no")[lost]


def ending(template: ChatTemplate, rendered: RenderedChat | None, messages: list[Any]) -> str:
    """What is trained after the text of an answer, if another turn follows."""
    if rendered is None:
        return ""
    place = next(number for number, message in enumerate(messages) if message["role"] == "assistant")
    if not rendered.turns[place].spans:
        return ""
    begin, end = rendered.turns[place].spans[-1]
    content, marks = messages[place]["content"], " (marks)" if rendered.marked else ""
    tail = rendered.text[begin:end].rpartition(content)[2].strip()
    if not tail:
        return f"nothing{marks}"
    try:
        alone = template.text(messages[: place + 1])
    except Reject:
        alone = rendered.text
    if tail not in alone.rpartition(content)[2]:
        return f"token, only before another turn{marks}"
    return ("token" if template.tokens.only_special.fullmatch(tail) else "text") + marks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with the test material")
    parser.add_argument("--only", default="", help="only templates with this text in their name")
    parser.add_argument("--markdown", type=Path, help="write the table into this page")
    args = parser.parse_args()
    folder = args.shared / "templates"
    if not (folder / "judge.py").is_file():
        sys.exit(f"skipped: no templates in {folder}: give the folder with the test material, --shared DIR")
    judge = loaded(folder / "judge.py")
    rows, total = [], Counter[str]()
    for path in sorted(folder.rglob("*.jinja")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        if args.only in name:
            cells, count = row(name, compiled(path.read_text(encoding="utf-8"), judge))
            rows.append(cells)
            total += count
    renders = total.total() - total["raises"]
    counts = ", ".join(f"{total[name]:,} {name}" for name in ("taken", "not written", "refused"))
    text = f"{len(rows)} templates, {len(CONVERSATIONS)} conversations each. Of {renders:,} that render: {counts}."
    text += "\n\n" + table(HEADER, rows, left=(0, 2, 3, *range(5, len(HEADER))))
    print(text)
    if args.markdown is not None:
        write_markdown(args.markdown, MARKER, text)


if __name__ == "__main__":
    main()
