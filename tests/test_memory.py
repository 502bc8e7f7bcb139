"""How much memory a process may use, and what it gives back."""

import subprocess
import sys
from pathlib import Path

import pytest

from beam_prep.memory import memory_limit


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


@pytest.mark.skipif(sys.platform != "linux", reason="the heap of another C library")
def test_what_was_freed_below_what_is_in_use_goes_back_to_the_system() -> None:
    """Left alone the heap keeps it: it ends where the last allocation does."""
    code = """
import ctypes, os
from beam_prep.memory import give_back_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
parts = [libc.malloc(64 << 10) for _ in range(1000)]
for part in parts:
    ctypes.memset(part, 1, 64 << 10)
for part in parts[:-1]:
    libc.free(part)
kept = resident()
give_back_memory()
print(kept - resident() > 50_000_000)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
