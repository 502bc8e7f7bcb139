"""The format `mds` in mosaicml-streaming: what `StreamingDataset` reads, and the bytes of `MDSWriter`."""

import hashlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import beam_prep as bp
from beam_prep.data.ragged import Ragged
from beam_prep.data.schema import Column
from beam_prep.formats import mds
from beam_prep.formats.manifest import ShardReceipt, WrittenFile
from beam_prep.formats.mds import MDS
from tests.formats.shards import DTYPES, write_as
from tests.trainers.build import streaming_python
from tests.trainers.conftest import Outputs

SCRIPT = Path(__file__).with_name("read_mds.py")
BOOL = {"loss_mask": "bool"}


def theirs(folders: Sequence[tuple[Path, Path | str]]) -> list[list[dict[str, Any]]]:
    """The rows of folders as StreamingDataset gives them; each is written again by MDSWriter."""
    command = [streaming_python(), str(SCRIPT), *(str(path) for pair in folders for path in pair)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `bp.open`, as it is in the files."""
    fields = {}
    for name, values in row.items():
        flat = values.flat if isinstance(values, Ragged) else values
        flat = flat.view(np.uint8) if flat.dtype == bool else flat
        fields[name] = [flat.dtype.name, flat.tolist()]
        if isinstance(values, Ragged):
            fields[f"{name}/lengths"] = ["int64", values.lengths.tolist()]
    return fields


def test_streaming_reads_what_is_there_and_its_writer_writes_the_same_bytes(outputs: Outputs, tmp_path: Path) -> None:
    storage: dict[str, Any] = {"storage_format": ["bin", "mds"], "domain_key": "domain"}
    runs = [
        outputs("sft_chat", items=120, output=storage | {"dtype": BOOL}),
        outputs("sft_chat", items=120, output=storage | {"max_tokens_per_shard": 4000}),
        outputs("grpo", data="rollouts", output=storage),
        outputs("sft_packed", max_seq_len=120, max_packed_len=400, output=storage),
    ]
    opened = [(bp.open(run), name) for run in runs for name in bp.open(run).domains]
    folders = [ds.path / ds.manifest["domains"][name] for ds, name in opened]
    again = [tmp_path / str(number) for number in range(len(folders))]
    compared = 0
    for (ds, name), folder, written, rows in zip(
        opened, folders, again, theirs(list(zip(folders, again, strict=True))), strict=True
    ):
        wanted = [ours(row) for row in ds.domain(name)]
        assert [json.dumps(row, sort_keys=True) for row in rows] == [json.dumps(row, sort_keys=True) for row in wanted]
        if sum(shard["domain"] == name for shard in ds.manifest["shards"]) == 1:
            for file in ("shard.00000.mds", "index.json"):
                assert (folder / file).read_bytes() == (written / file).read_bytes()
            compared += 1
    assert 3 < compared < len(folders)
    for run in runs:
        bp.open(run).verify()  # reading leaves nothing in an output


def test_streaming_reads_empty_rows_and_every_dtype(tmp_path: Path) -> None:
    lengths = [3, 0, 300, 70_000]
    columns = [Column(f"c_{dtype}", dtype, 1, "value") for dtype in DTYPES]
    values = np.arange(sum(lengths)) % 100
    rows = {column.name: Ragged.from_lengths(values.astype(column.dtype), lengths) for column in columns}
    path = write_as("mds", tmp_path, columns, [rows])
    data = path.read_bytes()
    file = WrittenFile(f"d/{path.name}", len(data), hashlib.sha256(data).hexdigest())
    receipt = ShardReceipt("d", 0, len(lengths), {}, {}, None, (file,))
    (tmp_path / mds.INDEX).write_bytes(MDS().described(columns, {"d": "d"}, [receipt])[f"d/{mds.INDEX}"])
    found = theirs([(tmp_path, "-")])
    reader = MDS().read(tmp_path, columns, 0, 1)
    assert found == [[ours(reader.row(index)) for index in range(len(lengths))]]
