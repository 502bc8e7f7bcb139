"""The limit of the text job: gigatoken's own `encode_files`, a JSONL file to ids in memory. Nothing is written.

    python benchmarks/peer_gigatoken.py INPUT.jsonl TOKENIZER_DIR

All cores, as gigatoken chooses. The last line printed is JSON; `encode_files_s` is the time of that call alone.
"""

import json
import os
import sys
import time


def main(source: str, folder: str) -> None:
    started = time.perf_counter()
    import gigatoken

    tokenizer = gigatoken.Tokenizer(os.path.join(folder, "tokenizer.json"))
    loaded = time.perf_counter()
    ids = tokenizer.encode_files(gigatoken.JsonlFileSource([source], field="text"))
    encoded = time.perf_counter()
    times = {"start_s": round(loaded - started, 3), "encode_files_s": round(encoded - loaded, 3)}
    print(json.dumps({"rows": len(ids), "tokens": len(ids.layout.content.data), **times}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
