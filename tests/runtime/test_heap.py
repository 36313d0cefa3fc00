"""The heap: free pages are returned to the system, also those that threads have used."""

from __future__ import annotations

import ctypes
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rookery.runtime.heap import trim_heap

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap is glibc's")

# A separate process, because the setting applies to the whole process and to later threads.
THREADS = """
import ctypes, resource, threading
from pathlib import Path
from rookery.runtime.heap import share_heap, trim_heap

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def use_memory():
    blocks = [ctypes.create_string_buffer(b"x" * 1_000_000) for _ in range(20)]
    used.append(resident_bytes())
    is_last.wait()

share_heap()
# The C library learns from the first large block that is freed to keep blocks up to this size in its heaps.
ctypes.create_string_buffer(20_000_000)
used, is_last = [], threading.Barrier(4)
before = resident_bytes()
threads = [threading.Thread(target=use_memory) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
trim_heap()
print(max(used) - before, resident_bytes() - before)
"""


def test_free_pages_in_the_middle_of_the_heap_are_returned() -> None:
    # Smaller than the size from which the C library requests each block from the system and returns it when freed.
    blocks = [ctypes.create_string_buffer(b"x" * 16_000) for _ in range(4000)]
    last = [ctypes.create_string_buffer(b"x" * 16_000) for _ in range(4)]
    del blocks
    before = _resident_bytes()

    trim_heap()

    assert before - _resident_bytes() > 30_000_000
    assert last


def test_memory_that_threads_have_freed_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, timeout=60)

    used, kept = map(int, done.stdout.split())
    assert used > 60_000_000
    assert kept < 5_000_000


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
