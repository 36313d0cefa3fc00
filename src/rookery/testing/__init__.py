"""What tests of Rookery, and of programs built on it, need: time that stands still until it is told to move.

It imports nothing of Rookery but `rookery.clock` and `rookery.chat`, so every package may be tested with it.
"""

from rookery.testing.clock import FakeClock, Timer, Trap

__all__ = ["FakeClock", "Timer", "Trap"]
