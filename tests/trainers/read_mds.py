"""Reads folders with mosaicml-streaming and writes their rows again: for `test_mds.py`, in an environment of its own.

    python read_mds.py FOLDER AGAIN ...     prints, per folder, its rows as JSON: field -> [dtype, values]

FOLDER is read as a store is: its shards are copied, and compared with their sha256. AGAIN is written by `MDSWriter`;
"-": nothing is.
"""

import json
import os
import shutil
import sys
import tempfile

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory


def main() -> None:
    """Reads and writes all folders."""
    clean_stale_shared_memory()
    found = []
    for folder, again in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        copy = tempfile.mkdtemp()
        rows = StreamingDataset(remote=folder, local=copy, batch_size=1, shuffle=False, validate_hash="sha256")
        found.append([{key: [str(each.dtype), each.tolist()] for key, each in row.items()} for row in rows])
        if again != "-":
            columns = dict(zip(rows.shards[0].column_names, rows.shards[0].column_encodings, strict=True))
            with MDSWriter(out=again, columns=columns, hashes=["sha256"], size_limit=None) as writer:
                for row in rows:
                    writer.write(row)
        shutil.rmtree(copy)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # streaming leaves threads and shared memory, without which the process does not end
