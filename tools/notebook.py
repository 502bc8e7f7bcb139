"""Runs examples/first_look.ipynb and writes what its cells give into it; a test compares that with the file.

python -m tools.notebook
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples" / "first_look.ipynb"


def executed(notebook: Path, folder: Path) -> str:
    """The notebook as JSON, with what its cells give when they run in a folder; without times, versions and logs."""
    import nbclient
    import nbformat

    for name in ("configs", "examples"):
        (folder / name).symlink_to(ROOT / name)
    run = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    for number, cell in enumerate(run.cells):
        cell.id = f"cell-{number}"
    nbclient.NotebookClient(run, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    run.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in run.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [_plain(output) for output in cell.outputs if not _is_noise(output)]
    return json.dumps(run, indent=1, ensure_ascii=False) + "\n"


def _is_noise(output: Any) -> bool:
    """True for logs, and for what Beam shows in a notebook of its own accord: a script, which draws nothing."""
    return output.get("name") == "stderr" or [*output.get("data", {})] == ["application/javascript"]


def _plain(output: Any) -> Any:
    """An output without what differs from run to run, such as the address of an object."""
    if "image/svg+xml" in output.get("data", {}):
        output["data"] = {"image/svg+xml": output["data"]["image/svg+xml"], "text/plain": "a picture"}
    return {key: value for key, value in output.items() if key != "transient"}


def main() -> int:
    """Writes the notebook; gives the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        text = executed(NOTEBOOK, Path(folder))
    NOTEBOOK.write_text(text, encoding="utf-8")
    print(f"examples/{NOTEBOOK.name}: {len(text):,} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
