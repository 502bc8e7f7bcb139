"""How much memory a process may use."""

from pathlib import Path

import pytest

from beam_prep.storage.preflight import memory_limit


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "limits", "wanted"),
    [
        ("0::/job/worker\n", {"job/worker/memory.max": "max", "job/memory.max": "1000000\n"}, 1_000_000),
        ("0::/job\n", {"job/memory.max": "3000000\n", "memory.max": "2000000\n"}, 2_000_000),
        ("0::/of/the/host\n", {"memory.max": "5000000\n"}, 5_000_000),
        ("4:cpu,memory:/job\n1:name=systemd:/\n", {"memory/job/memory.limit_in_bytes": "7000000\n"}, 7_000_000),
    ],
)
def test_the_lowest_limit_of_the_groups_counts(
    groups: str, limits: dict[str, str], wanted: int, tmp_path: Path
) -> None:
    put(tmp_path / "cgroup", groups)
    for name, text in limits.items():
        put(tmp_path / "sys" / name, text)
    assert memory_limit(tmp_path / "sys", tmp_path / "cgroup") == wanted


def test_without_a_limit_it_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    there = memory_limit(tmp_path, tmp_path / "none")
    put(tmp_path / "cgroup", "0::/job\n")
    put(tmp_path / "job" / "memory.max", str(there * 2))
    assert memory_limit(tmp_path, tmp_path / "cgroup") == there
