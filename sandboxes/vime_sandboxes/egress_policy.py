"""Which hosts a sandbox may reach: the entries of `SandboxSpec.network`.

    "pypi.org"            this host, ports 80 and 443
    "*.python.org:443"    every host below python.org (not itself), one port
    "10.1.2.3:8080", "10.0.0.0/8", "[::1]:80"    addresses, or networks of them

A name may only lead to public addresses: to a private or loopback one (or `localhost`) it leads only where an
entry lists that address too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vime_agents.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
DEFAULT_PORTS = (80, 443)
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Entry:
    """One of them."""

    host: str | Network
    below: bool
    """Whether it means the hosts below `host`."""
    ports: tuple[int, ...]


class Policy:
    """What is allowed."""

    def __init__(self, allow: Sequence[str]) -> None:
        """Raises ConfigError for an entry that cannot be understood."""
        self.allow = tuple(allow)
        self._entries = [_entry(text) for text in allow]

    def allows_name(self, host: str, port: int) -> bool:
        """Whether a name may be looked up, in order to connect to `port` of what it leads to."""
        name = host.lower().removesuffix(".")
        if not _NAME.fullmatch(name):
            return False
        return any(
            isinstance(e.host, str)
            and port in e.ports
            and (name.endswith("." + e.host) if e.below else name == e.host)
            for e in self._entries
        )

    def allows_address(self, address: Address, port: int, *, by_name: bool) -> bool:
        """Whether to connect to an address, which an allowed name led to (`by_name`) or which was given."""
        address = _plain(address)
        if by_name and _is_public(address):
            return True
        return any(
            not isinstance(e.host, str) and port in e.ports and address in e.host for e in self._entries
        )


def parse_address(host: str) -> Address | None:
    """A host that is written as an address; None: it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _entry(text: str) -> Entry:
    host, port = _split(text)
    try:
        ports = DEFAULT_PORTS if port is None else (int(port),)
        if not 0 < ports[0] < 1 << 16:
            raise ValueError
    except ValueError:
        raise ConfigError(f"SandboxSpec.network: {text!r} has no port between 1 and 65535") from None
    try:
        return Entry(ipaddress.ip_network(host), below=False, ports=ports)
    except ValueError:
        name = host.lower().removesuffix(".")
    below = name.startswith("*.")
    name = name.removeprefix("*.")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"SandboxSpec.network: {text!r} is neither a host like 'pypi.org', '*.python.org:443' nor an "
            "address like '10.1.2.3:8080'; network=True allows everything"
        )
    return Entry(name, below=below, ports=ports)


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") or None
    if text.count(":") > 1:  # an IPv6 address alone
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.teredo:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
