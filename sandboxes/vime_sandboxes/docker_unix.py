"""docker-py over a Unix socket, without its leak: it does not close a socket that cannot connect."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from docker import APIClient
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool


class _Connection(UnixHTTPConnection):
    def connect(self) -> None:
        with contextlib.ExitStack() as unless_connected:
            sock = unless_connected.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)
            unless_connected.pop_all()
        self.sock = sock


class _Pool(UnixHTTPConnectionPool):
    def _new_conn(self) -> Any:
        timeout: Any = self.timeout
        return _Connection(self.base_url, self.socket_path, timeout)


class _Adapter(UnixHTTPAdapter):
    def get_connection(self, url: str | bytes, proxies: Any = None) -> _Pool:
        key = str(url)
        with self.pools.lock:
            if key not in self.pools:
                self.pools[key] = _Pool(key, self.socket_path, self.timeout, maxsize=self.max_pool_size)
            return self.pools[key]


def use_closing_sockets(client: APIClient, host: str, *, timeout_s: int, max_connections: int) -> None:
    """Give a client that has not connected yet connections that close what cannot connect.

    Args:
        client: docker-py's, made with a `version`: it asks for none then.
        host: the daemon's address; only `unix://` needs this.
        timeout_s: for each connection, and each wait for data.
        max_connections: kept open.
    """
    if host.startswith("unix://"):
        adapter = _Adapter(
            host.replace("unix://", "http+unix://", 1), timeout_s, max_pool_size=max_connections
        )
        client.mount("http+docker://", adapter)
