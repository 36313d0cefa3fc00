"""Counters of requests, and that clients cannot add label values."""

from __future__ import annotations

import pytest

from rookery.telemetry.http_stats import HttpStats


def test_answered_request_is_counted_and_timed() -> None:
    http = HttpStats()

    http.observe("GET", "/api/v1/chats/{chat}", 200, 0.004)

    assert http.requests == {("GET", "/api/v1/chats/{chat}", "200"): 1}
    assert http.request_seconds["GET", "/api/v1/chats/{chat}"].count == 1


def test_invented_methods_and_addresses_add_no_names() -> None:
    http = HttpStats()

    for number in range(20):
        http.observe(f"METHOD{number}", None, 404, 0.001)
        http.too_large(None, f"reason{number}")

    assert http.requests == {("other", "unmatched", "404"): 20}
    assert http.refused_as_large == {("unmatched", "other"): 20}


def test_request_is_in_flight_until_it_ends_also_when_it_fails() -> None:
    http = HttpStats()
    key = ("POST", "/api/v1/chats")

    def fail() -> None:
        with http.serving(*key):
            assert http.in_flight[key] == 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert http.in_flight[key] == 0
