"""The host list of a template: the syntax of entries, and the hosts they cover."""

from __future__ import annotations

import pytest

from rookery.workspaces.egress import hosts


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("packages.example.org", "packages.example.org"),
        ("Packages.Example.org.", "packages.example.org"),
        ("*.Example.com", "*.example.com"),
        ("example.com:8443", "example.com:8443"),
        ("*.example.com:8443", "*.example.com:8443"),
        ("gitlab", "gitlab"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_service.example.com", "_service.example.com"),
    ],
)
def test_entry_has_one_way_to_be_written(text: str, written: str) -> None:
    assert str(hosts.parse(text)) == written


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("https://packages.example.org", "leave out the scheme"),
        ("packages.example.org/simple", "leave out the scheme and the path"),
        ("", "not the name of a host"),
        ("*", "not the name of a host"),
        ("*.", "not the name of a host"),
        ("*.com", "at least two parts"),
        ("a.*.com", "not the name of a host"),
        ("-a.com", "not the name of a host"),
        ("a..com", "not the name of a host"),
        ("a b.com", "not the name of a host"),
        ("user@a.com", "not the name of a host"),
        (f"{'a' * 64}.com", "not the name of a host"),
        (".".join(["a" * 60] * 5), "not the name of a host"),
        ("bücher.example", "xn--"),
        ("127.0.0.1", "is an address"),
        ("2130706433", "is an address"),
        ("0x7f.1", "is an address"),
        ("*.0.0.1", "is an address"),
        ("::1", "not the name of a host"),
        ("[::1]", "not the name of a host"),
        ("a.com:", "no port"),
        ("a.com:0", "no port"),
        ("a.com:65536", "no port"),
        ("a.com:x", "no port"),
        ("a.com:٣", "no port"),
    ],
)
def test_entry_that_is_none_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        hosts.parse(text)


@pytest.mark.parametrize(
    ("entry", "host", "port", "fits"),
    [
        ("example.com", "example.com", 80, True),
        ("example.com", "example.com", 443, True),
        ("example.com", "example.com", 22, False),
        ("example.com", "a.example.com", 443, False),
        ("example.com", "notexample.com", 443, False),
        ("*.example.com", "a.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "aexample.com", 443, False),
        ("*.example.com", "example.com.evil.test", 443, False),
        ("example.com:8443", "example.com", 8443, True),
        ("example.com:8443", "example.com", 443, False),
    ],
)
def test_entry_covers_what_it_says(entry: str, host: str, port: int, fits: bool) -> None:
    assert hosts.parse(entry).matches(host, port) is fits


def test_long_list_is_shown_in_short() -> None:
    rules = [hosts.parse(f"h{number}.test") for number in range(25)]

    assert hosts.format_rules(rules).endswith("h19.test and 5 more")
    assert hosts.format_rules([]) == "none"
