from __future__ import annotations

import ipaddress

import pytest

from vime_agents.errors import ConfigError
from vime_sandboxes.egress_policy import Policy, parse_address
from vime_sandboxes.egress_proxy import Refused, parse


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "PyPI.org.", 80, True),
        ("pypi.org", "pypi.org", 22, False),
        ("pypi.org", "evil-pypi.org", 443, False),
        ("pypi.org", "pypi.org.evil.com", 443, False),
        ("pypi.org", "x.pypi.org", 443, False),
        ("*.python.org:443", "docs.python.org", 443, True),
        ("*.python.org:443", "a.b.python.org", 443, True),
        ("*.python.org:443", "docs.python.org", 80, False),
        ("*.python.org:443", "python.org", 443, False),
        ("*.python.org:443", "xpython.org", 443, False),
        ("*.python.org", "\u0430.python.org", 443, False),
        ("*.python.org", "a b.python.org", 443, False),
        ("*.python.org", "..python.org", 443, False),
        ("10.0.0.0/8", "10.1.2.3", 80, False),
        ("127.0.0.1", "2130706433", 80, False),
    ],
)
def test_names(entry: str, host: str, port: int, allowed: bool) -> None:
    assert Policy([entry]).allows_name(host, port) is allowed


@pytest.mark.parametrize(
    ("entries", "address", "port", "by_name", "allowed"),
    [
        ([], "93.184.216.34", 80, True, True),
        ([], "93.184.216.34", 80, False, False),
        (["93.184.216.34"], "93.184.216.34", 443, False, True),
        (["93.184.216.34:8443"], "93.184.216.34", 443, False, False),
        ([], "127.0.0.1", 80, True, False),
        ([], "10.1.2.3", 80, True, False),
        ([], "169.254.169.254", 80, True, False),
        ([], "100.64.0.1", 80, True, False),
        ([], "0.0.0.0", 80, True, False),
        ([], "224.0.0.1", 80, True, False),
        ([], "255.255.255.255", 80, True, False),
        ([], "::1", 80, True, False),
        ([], "fe80::1", 80, True, False),
        ([], "fc00::1", 80, True, False),
        ([], "::ffff:127.0.0.1", 80, True, False),
        ([], "64:ff9b::7f00:1", 80, True, False),
        ([], "2002:7f00:1::", 80, True, False),
        ([], "2606:4700::1111", 80, True, True),
        (["10.0.0.0/8:443"], "10.1.2.3", 443, True, True),
        (["10.0.0.0/8:443"], "10.1.2.3", 80, True, False),
        (["[::1]:8000"], "::1", 8000, False, True),
        (["::1"], "::1", 443, False, True),
        (["127.0.0.1:5000"], "::ffff:127.0.0.1", 5000, False, True),
    ],
)
def test_addresses(entries: list[str], address: str, port: int, by_name: bool, allowed: bool) -> None:
    assert Policy(entries).allows_address(ipaddress.ip_address(address), port, by_name=by_name) is allowed


@pytest.mark.parametrize(
    "entry", ["*", "", "http://x.org", "a b", "x.org:", "x.org:0", "x.org:99999", "*.*.org"]
)
def test_entries_that_mean_nothing_are_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"SandboxSpec\.network"):
        Policy([entry])


def test_only_plain_addresses_are_addresses() -> None:
    assert str(parse_address("10.0.0.1")) == "10.0.0.1"
    assert [parse_address(text) for text in ("127.1", "0x7f.0.0.1", "2130706433", "pypi.org")] == [None] * 4


def test_a_plain_request_names_the_host_that_was_checked() -> None:
    head = (
        b"GET http://pypi.org/simple/?a=b#c HTTP/1.1\r\nHost: evil.com\r\nAccept: */*\r\n"
        b"Proxy-Authorization: x\r\nConnection: keep-alive"
    )
    request = parse(head)
    assert (request.host, request.port) == ("pypi.org", 80)
    assert request.head == (
        b"GET /simple/?a=b HTTP/1.1\r\nHost: pypi.org\r\nConnection: close\r\nAccept: */*\r\n\r\n"
    )


def test_connect() -> None:
    request = parse(b"CONNECT [::1]:8443 HTTP/1.1\r\nHost: x")
    assert (request.host, request.port, request.head) == ("::1", 8443, None)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1",
        b"GET ftp://x.org/ HTTP/1.1",
        b"GET http://user@x.org/ HTTP/1.1",
        b"GET http://x.org:99999/ HTTP/1.1",
        b"GET http:///x HTTP/1.1",
        b"CONNECT x.org:443",
        b"CONNECT x.org:443 SSH/2",
        b"\xff http://x.org/ HTTP/1.1",
        b"",
    ],
)
def test_what_is_no_request_to_a_proxy_is_refused(head: bytes) -> None:
    with pytest.raises(Refused):
        parse(head)
