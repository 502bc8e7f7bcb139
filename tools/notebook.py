"""Runs examples/first_look.ipynb and writes the results of its cells into it. A test checks that they are current.

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
    """Runs the notebook in a folder. Returns its JSON with the results of cells, without times, versions and logs."""
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
    """True for logs, and for a script that Beam adds to notebooks and that draws nothing."""
    return output.get("name") == "stderr" or [*output.get("data", {})] == ["application/javascript"]


def _plain(output: Any) -> Any:
    """The output of a cell without parts that differ between runs, such as addresses of objects."""
    if "image/svg+xml" in output.get("data", {}):
        output["data"] = {"image/svg+xml": output["data"]["image/svg+xml"], "text/plain": "a picture"}
    return {key: value for key, value in output.items() if key != "transient"}


def main() -> int:
    """Writes the notebook. Returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        text = executed(NOTEBOOK, Path(folder))
    NOTEBOOK.write_text(text, encoding="utf-8")
    print(f"examples/{NOTEBOOK.name}: {len(text):,} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
