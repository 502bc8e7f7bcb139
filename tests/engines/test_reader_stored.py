"""`bp.open` of an output in a real store: the rows of the same output on a disk, through a cache."""

from pathlib import Path

import beam_prep as bp
from beam_prep.storage.stores import objects
from beam_prep.storage.stores.objects import read_bytes
from tests.engines.stores import Store
from tests.engines.test_verify_stored import output as output
from tests.engines.test_verify_stored import server as server


def test_rows_tokenizer_and_files_come_through_the_cache(output: str, server: Store, tmp_path: Path) -> None:
    local = tmp_path / "local"
    for found in objects.listed(f"{output}/"):
        path = local / found.path.removeprefix(f"{output}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(read_bytes(found.path))
    wanted, dataset = bp.open(local), bp.open(output, cache=tmp_path / "cache")
    assert (len(dataset), dataset.domains, dataset.columns) == (len(wanted), wanted.domains, wanted.columns)
    name = dataset.columns[0]
    assert [row[name].tolist() for row in dataset] == [row[name].tolist() for row in wanted]
    assert dataset[[3, 0]][name].to_lists() == wanted[[3, 0]][name].to_lists()
    assert dataset.decode(0) == wanted.decode(0)
    dataset.verify()
    before = len(server.requests())
    again = bp.open(output, cache=tmp_path / "cache")
    assert [row[name].tolist() for row in again] == [row[name].tolist() for row in wanted]
    assert len(server.requests()) - before < 8  # latest.json, the manifest
