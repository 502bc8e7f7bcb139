"""Digests of inputs that do not depend on how the inputs were split.

A binary hash tree over chunks of 64 KB, as in RFC 6962 (section 2.1): a split that begins at a multiple of the chunk
gives a few complete subtrees, and the subtrees of all splits, in order, give the digest of the file.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CHUNK = 64 * 1024

GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014)."""


def mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The last step of SplitMix64. Different values stay different."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(_FIRST)
    values = (values ^ values >> np.uint64(27)) * np.uint64(_SECOND)
    return values ^ values >> np.uint64(31)


@dataclass(frozen=True, slots=True)
class Node:
    """A complete subtree: 2**level chunks from chunk `index * 2**level` on."""

    index: int
    level: int
    digest: bytes


def _parent(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def _push(stack: list[Node], node: Node) -> None:
    while stack and node.index % 2 == 1:
        left = stack[-1]
        if left.level != node.level or left.index != node.index - 1:
            break
        stack.pop()
        node = Node(node.index // 2, node.level + 1, _parent(left.digest, node.digest))
    stack.append(node)


def tree_nodes(data: bytes | memoryview, start: int, chunk: int = CHUNK, head: bytes = b"") -> tuple[Node, ...]:
    """The largest complete subtrees over `head + data`, from byte `start` of a file, a multiple of `chunk`."""
    if start % chunk:
        raise ValueError(f"start {start} is no multiple of {chunk}")
    view, before = memoryview(data), len(head)
    stack: list[Node] = []
    for position in range(0, before + len(view), chunk):
        of_data = view[max(0, position - before) : max(0, position - before + chunk)]
        _push(stack, Node((start + position) // chunk, 0, _leaf((head[position : position + chunk], of_data))))
    return tuple(stack)


def subtree(leaves: Mapping[int, Iterable[bytes]], first: int, count: int) -> Node:
    """The complete subtree over leaves, most of which may be empty.

    Args:
        leaves: place -> the parts of the content, for leaves that are not empty.
        first: the place of the first leaf, a multiple of `count`.
        count: number of leaves, a power of 2.
    """
    digests = {place - first: _leaf(parts) for place, parts in leaves.items()}
    empty, level = _leaf(()), 0
    while count > 1:
        parents = sorted({place // 2 for place in digests})
        digests = {
            place: _parent(digests.get(2 * place, empty), digests.get(2 * place + 1, empty)) for place in parents
        }
        empty, level, count, first = _parent(empty, empty), level + 1, count // 2, first // 2
    return Node(first, level, digests.get(0, empty))


def _leaf(parts: Iterable[bytes | memoryview]) -> bytes:
    leaf = hashlib.sha256(b"\x00")
    for part in parts:
        leaf.update(part)
    return leaf.digest()


def tree_digest(nodes: Iterable[Node]) -> str:
    """Hex digest of a file from its subtrees, in order."""
    stack: list[Node] = []
    for node in nodes:
        _push(stack, node)
    if not stack:
        return hashlib.sha256(b"").hexdigest()
    digest = stack[-1].digest
    for node in reversed(stack[:-1]):
        digest = _parent(node.digest, digest)
    return digest.hex()


def block_digest(nodes: Collection[Node], skip: int, bom: bool, tail: bytes | memoryview, cut: bool = False) -> str:
    """The name of a block: a digest of everything that its lines depend on.

    Args:
        nodes: the subtrees of its byte range.
        skip: bytes at its head that belong to an earlier line.
        bom: it begins with a byte order mark, which is skipped; elsewhere in a file, the same bytes are no JSON.
        tail: the part of its last line beyond the range.
        cut: the last line has more bytes, which are not read.
    """
    state = hashlib.sha256(f"{skip} {bom:d} {len(nodes)}{' cut' if cut else ''}\n".encode())
    for node in nodes:
        state.update(bytes([node.level]) + node.digest)
    state.update(tail)
    return state.hexdigest()
