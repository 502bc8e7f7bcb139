"""Digests of the inputs' content: whether they are what an output was made of."""

import hashlib
import json
from collections.abc import Sequence

from beam_prep.core.data.block import InputFile
from beam_prep.core.data.hashing import Node, tree_digest, tree_nodes
from beam_prep.storage.files import open_input
from beam_prep.storage.splits import BLOCK_BYTES


def stores_checksum(files: Sequence[InputFile]) -> str | None:
    """A digest of the stores' checksums of the files' content; None: a file is local, or its store has none."""
    if any(file.checksum is None for file in files):
        return None
    checksums = [(file.path, file.size, file.checksum) for file in files]
    return hashlib.sha256(json.dumps(checksums).encode()).hexdigest()


def digest_of_input(source: InputFile) -> str:
    """Digest of a file's content, as in a manifest."""
    nodes: list[Node] = []
    start = 0
    with open_input(source) as stream:
        buffer = b""
        while part := stream.read(BLOCK_BYTES - len(buffer)):
            buffer += part
            if len(buffer) == BLOCK_BYTES:
                nodes += tree_nodes(buffer, start)
                start, buffer = start + len(buffer), b""
        nodes += tree_nodes(buffer, start)
    return tree_digest(nodes)
