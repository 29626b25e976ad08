"""An HTTP proxy for one connection: `CONNECT host:port`, or a plain request for `http://host/...`.

It runs in the owner, and the program inside is not trusted: the host is checked, looked up here, and the
address that it led to is checked again and is the one that is connected to.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from vime_sandboxes.egress_policy import Address, Policy, parse_address
from vime_sandboxes.relay import RelayStream, pump

MAX_HEAD_BYTES = 1 << 16
HEAD_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 15.0
_END_OF_HEAD = b"\r\n\r\n"
_NOT_FORWARDED = (b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"host")


class Refused(Exception):
    """What the program inside is answered."""

    def __init__(self, status: str, text: str) -> None:
        self.status, self.text = status, text
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class Request:
    """Where it wants to go."""

    host: str
    port: int
    head: bytes | None
    """What the server is sent first; None for CONNECT."""


async def serve(stream: RelayStream, policy: Policy) -> None:
    """Serve one connection to its end."""
    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head, rest = await _read_head(stream)
        request = parse(head)
        reader, writer = await _connect(request, policy)
    except Refused as error:
        await _answer(stream, error)
        return
    except TimeoutError:
        await stream.reset()
        return
    try:
        if request.head is None:
            await stream.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        writer.write((request.head or b"") + rest)
    except OSError:
        writer.close()
        return
    await pump(stream, reader, writer)


def parse(head: bytes) -> Request:
    """The head of a request. Raises Refused."""
    first, *lines = head.split(b"\r\n")
    try:
        method, target, version = first.decode("ascii").split(" ")
        if method == "CONNECT":
            parts = urlsplit(f"//{target}")
        else:
            parts = urlsplit(target)
            if parts.scheme != "http":
                raise ValueError
        host, port = parts.hostname, parts.port or (443 if method == "CONNECT" else 80)
        if not host or parts.username is not None or not version.startswith("HTTP/1."):
            raise ValueError
    except ValueError:
        text = "this is a proxy: CONNECT host:port, or GET http://host/path"
        raise Refused("400 Bad Request", text) from None
    if method == "CONNECT":
        return Request(host, port, None)
    path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _NOT_FORWARDED]
    # The host that was checked, whatever the request said; and one request for each connection.
    own = [f"Host: {parts.netloc}".encode(), b"Connection: close"]
    return Request(
        host, port, b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), *own, *kept]) + _END_OF_HEAD
    )


async def _read_head(stream: RelayStream) -> tuple[bytes, bytes]:
    data = b""
    while _END_OF_HEAD not in data:
        piece = await stream.read()
        data += piece
        if not piece or len(data) > MAX_HEAD_BYTES:
            raise Refused("400 Bad Request", "no complete request")
    head, _, rest = data.partition(_END_OF_HEAD)
    return head, rest


async def _connect(request: Request, policy: Policy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address, problem = parse_address(request.host), "no address"
    by_name = address is None
    if address is not None:
        found = [address]
    elif policy.allows_name(request.host, request.port):
        found = await _look_up(request.host)
    else:
        found = []
    allowed = [a for a in found if policy.allows_address(a, request.port, by_name=by_name)]
    if not allowed:
        leads = f", which leads to {', '.join(map(str, found))}," if found and by_name else ""
        text = f"{request.host}:{request.port}{leads} is not on the sandbox's allow-list"
        raise Refused("403 Forbidden", f"{text}: {', '.join(policy.allow)}")
    for address in allowed:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(str(address), request.port)
        except OSError as error:  # also a time-out
            problem = str(error) or f"no answer in {CONNECT_TIMEOUT_S:g} s"
    raise Refused("502 Bad Gateway", f"cannot reach {request.host}:{request.port}: {problem}")


async def _look_up(host: str) -> list[Address]:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            rows = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Refused("502 Bad Gateway", f"cannot look up {host}: {error}") from None
    found = (parse_address(str(row[4][0])) for row in rows)
    return list(dict.fromkeys(a for a in found if a is not None))


async def _answer(stream: RelayStream, refused: Refused) -> None:
    body = f"{refused.text}\n".encode()
    head = f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    with contextlib.suppress(OSError):  # it did not wait for the answer
        await stream.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await stream.end()
        while await stream.read():
            pass
