"""Memory of the process: settings of the C library's heap and of the garbage collector.

The C library keeps freed memory. Without `share_heap` and `trim_heap`, the process would stay as large as its largest
requests and answers have made it. Both do nothing without glibc.
"""

from __future__ import annotations

import ctypes
import gc

_M_ARENA_MAX = -8  # malloc.h


def _load_libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None)
    except OSError:
        return None
    return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None


_libc = _load_libc()


def share_heap() -> None:
    """Let all threads allocate from one heap. Call it before the first thread is started.

    By default, each thread has its own heap, and `trim_heap` does not return the free memory at the end of such a heap.
    Large requests are encoded in threads, so this may be tens of megabytes in each of up to eight heaps per core. A
    single heap is not a bottleneck, because threads hold the GIL when they allocate.
    """
    if _libc is not None:
        _libc.mallopt(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return the free pages of the heap to the operating system. The call releases the GIL."""
    if _libc is not None:
        _libc.malloc_trim(0)


# Higher than Python's default of 700, 10, 10, because almost all objects are freed by reference counting.
_GC_THRESHOLDS = (2_000, 25, 25)


def freeze_startup_objects() -> None:
    """Exempt all existing objects from garbage collection, and collect less often. Call it after the start.

    No tokens are sent during a collection, and a collection of all objects takes 100 ms and more.
    """
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
