"""How many requests a job sends to a store, from the log of a server: `python -m tests.engines.count_requests`.

Two jobs of one shard, one with twice the blocks: the difference is what a block costs, the rest is the job's own.
"""

import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from beam_prep.config import PipelineConfig
from beam_prep.pipeline import Pipeline
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.objects import read_bytes
from tests.engines.stores import Store, gcs_server, s3_server
from tests.test_resume import CONFIG, KB, chat

TOKENIZER = str(Path(__file__).parents[2] / "examples" / "tokenizer")
VERBS = ("HEAD", "GET", "PUT", "POST", "DELETE")


def count(store: Store, records: int, name: str, max_tokens: int = 10**9) -> tuple[int, int, Counter[str]]:
    """(blocks, shards, requests by verb) of a job. Records of other names are other blocks."""
    options = [*store.options, "--runner=FnApiRunner"]
    FileSystems.set_options(PipelineOptions(options))
    lines = [line for line in chat(records, name).splitlines() if not line.startswith(b'{"number')]
    objects.put(f"{store.url}/{name}.jsonl", b"\n".join(lines))
    config: dict[str, Any] = {**CONFIG, "output": {**CONFIG["output"], "max_tokens_per_shard": max_tokens}}
    before = len(store.requests())
    made = Pipeline(
        PipelineConfig.from_dict(config),
        f"{store.url}/{name}.jsonl",
        f"{store.url}/{name}",
        TOKENIZER,
        block_bytes=64 * KB,
        cache_dir=f"{store.url}/token_cache",
        beam_options=options,
    ).run()
    assert made.manifest is not None
    verbs = Counter(
        found[1] for line in store.requests()[before:] if (found := re.search(rf"\b({'|'.join(VERBS)})\b", line))
    )
    return json.loads(read_bytes(f"{store.url}/{name}/run.json"))["blocks"], len(made.manifest["shards"]), verbs


def main() -> int:
    print("| | " + " | ".join(VERBS) + " |")
    print("|---" * (1 + len(VERBS)) + "|")
    for server in (s3_server, gcs_server):
        with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as store:
            small, large = count(store, 1300, "small"), count(store, 2600, "large")
            shards = count(store, 2600, "shards", 100_000)
            per_block = {verb: (large[2][verb] - small[2][verb]) / (large[0] - small[0]) for verb in VERBS}
            # Its blocks lie on both sides of shard borders: so a shard costs slices, too.
            per_shard = {verb: (shards[2][verb] - large[2][verb]) / (shards[1] - large[1]) for verb in VERBS}
            own = {verb: small[2][verb] - per_block[verb] * small[0] - per_shard[verb] for verb in VERBS}
            for what, costs in (("block", per_block), ("shard (2 formats)", per_shard), ("job", own)):
                print(f"| {store.url[:2]}, a {what} | " + " | ".join(f"{costs[verb]:.1f}" for verb in VERBS) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
