"""The jobs that every engine has to give the same bytes for, on inputs of several blocks made from the samples."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from beam_prep.config import PipelineConfig
from beam_prep.config.strict import FORMAT_NAMES
from beam_prep.pipeline import Pipeline
from beam_prep.shards.compose import RunSizes
from tests.conftest import ROOT, config_of

BLOCK_BYTES = 65_536
"""The smallest: so that small inputs are work for several workers."""
SIZES = RunSizes(run=20_000, bin=4_000, batches=40)
"""Of which a shuffle has several runs, and two levels."""


@dataclass(frozen=True)
class Job:
    """One job.

    Attributes:
        config: as of a file.
        sample: of `examples/data`, the records of its input.
        times: how often they come, each time with another number in them.
    """

    config: dict[str, Any]
    sample: str
    times: int

    def write_input(self, folder: Path) -> Path:
        """Its input, one file: the same bytes each time."""
        rows = [json.loads(line) for line in (ROOT / "examples" / "data" / self.sample).read_bytes().splitlines()]
        path = folder / self.sample
        with path.open("w", encoding="utf-8") as file:
            for number in range(self.times):
                file.writelines(f"{json.dumps(_numbered(row, number), ensure_ascii=False)}\n" for row in rows)
        return path


def _numbered(row: dict[str, Any], number: int) -> dict[str, Any]:
    """The row with a number at the end of every message, or text: equal blocks would be tokenised once."""

    def numbered(name: str, value: Any) -> Any:
        if name == "text":
            return f"{value} ({number})"
        if isinstance(value, list):
            return [{**one, "content": f"{one['content']} ({number})"} for one in value]
        return value

    return {name: numbered(name, value) for name, value in row.items()}


LARGE = {"max_tokens_per_shard": 100_000}
JOBS = {
    "chat, bin + tfrecord": Job(
        config_of("sft_conversation", output=LARGE | {"storage_format": ["bin", "tfrecord"], "domain_key": "domain"}),
        "chat.jsonl",
        times=6,
    ),
    "DPO, bin": Job(config_of("dpo_conversation", output=LARGE), "preference.jsonl", times=40),
    "packed, arrow": Job(config_of("sft_packed", output=LARGE), "chat.jsonl", times=6),
    "composed, bin": Job(
        config_of(
            "sft_conversation",
            output={
                "storage_format": ["bin"],
                "domain_key": "domain",
                "shuffle": {"seed": 17},
                "splits": {"train": 0.8, "validation": 0.1, "test": 0.1},
                "mix": {"cooking": {"epochs": 1.5}},
                "max_tokens_per_shard": 20_000,
            },
        )
        | {"preprocessing": {"deduplicate": {"by": ["id"]}}},
        "chat.jsonl",
        times=6,
    ),
    "chunks, every format": Job(
        config_of("pretrain_chunks", output=LARGE | {"storage_format": list(FORMAT_NAMES)}), "text.jsonl", times=10
    ),
}


def run(
    config: dict[str, Any], source: Path | str, output: Path | str, options: Sequence[str], **settings: Any
) -> dict[str, Any]:
    """Runs a job from scratch; gives its manifest."""
    settings.setdefault("tokenizer_path", ROOT / "examples" / "tokenizer")
    settings.setdefault("block_bytes", BLOCK_BYTES)
    settings["beam_options"] = list(options)  # which say where a store is
    job = Pipeline(PipelineConfig.from_dict(config), [str(source)], output_dir=output, **settings)
    job.compose = replace(job.compose, sizes=SIZES)
    manifest = job.run().manifest
    assert manifest is not None
    return manifest
