"""Makes the pictures in docs/pictures/ from the sample data. A test checks that they are current.

python -m tools.pictures
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import beam_prep as bp
from beam_prep.inspect.picture import picture

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"

# Name -> (config, sample, changes of the config, row).
PICTURES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "masked_chat": ("sft_conversation", "chat", {}, 14),
    "header_trained": ("sft_chat", "chat", {}, 14),
    "last_answer": ("sft_conversation", "chat", {"mask": {"assistant": "last"}}, 14),
    "tools": ("tools", "more/tools", {}, 10),
    "packed": (
        "sft_packed",
        "chat",
        {"preprocessing": {"max_seq_len": 100, "truncation_mode": "drop", "max_packed_len": 256}},
        0,
    ),
    "preference": ("dpo_conversation", "preference", {}, 0),
    "prompt_completion": ("sft_prompt_completion", "more/prompt_completion", {}, 0),
}


def prepared(config: str, sample: str, changes: dict[str, Any], output: Path) -> bp.Dataset:
    """The output of a config of configs/ over a file of examples/data/."""
    settings = json.loads((ROOT / "configs" / f"{config}.json").read_text(encoding="utf-8"))
    for part, values in changes.items():
        settings[part] = {**settings.get(part, {}), **values}
    template = settings["input"].get("chat_template")
    if isinstance(template, str) and template.endswith(".jinja"):
        settings["input"]["chat_template"] = str(ROOT / "configs" / template)
    job = bp.Pipeline(
        bp.PipelineConfig.from_dict(settings),
        [str(ROOT / "examples" / "data" / f"{sample}.jsonl")],
        output_dir=output,
        tokenizer_path=str(ROOT / "examples" / "tokenizer"),
    )
    job.run(["--runner=DirectRunner"])
    return bp.open(output)


def pictures(work: Path) -> dict[str, str]:
    """File name -> SVG of every picture; `work`: a folder for the outputs."""
    found = {}
    for name, (config, sample, changes, row) in PICTURES.items():
        dataset = prepared(config, sample, changes, work / name)
        found[f"{name}.svg"] = picture(dataset, row)
    return found


def main() -> int:
    """Writes all pictures. Returns the exit code."""
    with tempfile.TemporaryDirectory() as work:
        for name, svg in pictures(Path(work)).items():
            (FOLDER / name).write_text(svg, encoding="utf-8")
            print(f"docs/pictures/{name}: {len(svg):,} characters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
