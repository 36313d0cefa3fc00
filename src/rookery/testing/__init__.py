"""Test helpers for Rookery and for programs built on it: fake provider servers, and a clock that tests control.

The fakes of the providers are in `fake_anthropic`, `fake_responses` and `fake_completions`, each with the types of its
wire; docs/guide/testing.md shows them. The package imports only the clock and the pure rules of Rookery, so every
package may be tested with it.
"""

from rookery.testing.clock import FakeClock, Timer, Trap
from rookery.testing.fake_anthropic import FakeAnthropic
from rookery.testing.fake_completions import FakeCompletions
from rookery.testing.fake_responses import FakeResponses
from rookery.testing.fake_server import FakeServer, Fault, RecordedRequest, Scenario

__all__ = [
    "FakeAnthropic",
    "FakeClock",
    "FakeCompletions",
    "FakeResponses",
    "FakeServer",
    "Fault",
    "RecordedRequest",
    "Scenario",
    "Timer",
    "Trap",
]
