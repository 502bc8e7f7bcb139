"""Makes the screenshots of the docs: pages of `examples/data/chat.jsonl` in Chromium, light and dark.

make screenshots
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1000, 1240


def pages(folder: Path) -> dict[str, Path]:
    """Name -> page: the report of a run that leaves out and cuts records, and a page of its rows."""
    lines = (ROOT / "examples/data/chat.jsonl").read_text("utf-8").splitlines()
    lines[5:5] = ['{"messages": [', '{"messages": []}']
    source = folder / "chat.jsonl"
    source.write_text("\n".join(lines) + "\n", "utf-8")
    config = json.loads((ROOT / "configs/sft_conversation.json").read_text())
    config["preprocessing"] = {**config.get("preprocessing", {}), "max_seq_len": 256}
    (folder / "config.json").write_text(json.dumps(config))
    cli = [sys.executable, "-m", "beam_prep.cli"]
    tokenizer = str(ROOT / "examples/tokenizer")
    for words in (
        ["run", "chat.jsonl", "-c", "config.json", "-o", "chats", "--tokenizer_path", tokenizer],
        ["report", "chats"],
        ["inspect", "chats", "--html", "rows.html"],
    ):
        subprocess.run([*cli, *words], check=True, cwd=folder)
    return {"report": folder / "chats" / "report.html", "rows": folder / "rows.html"}


def main() -> None:
    """Writes `docs/pictures/*_light.png` and `*_dark.png`."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, path in pages(Path(folder)).items():
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
                page.goto(path.as_uri())
                page.screenshot(path=PICTURES / f"{name}_{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
