"""The Docker daemon (or Podman's socket): its calls on a few threads, its streams on the event loop.

docker-py blocks; every call of it runs on a thread of the engine. What flows for long (a container's standard
streams) does not go through docker-py: the connection is opened here and belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from vime_agents.errors import (
    MissingDependencyError,
    SandboxBackendError,
    SandboxError,
    SandboxTimeout,
    SandboxUnavailable,
    SandboxUnreachable,
    SandboxUnsupported,
)
from vime_sandboxes.docker_stream import Stream

if TYPE_CHECKING:
    from docker import APIClient

ANSWER_TIMEOUT_S = 60.0
"""How long the daemon may take for one call."""
THREADS = 4 * (os.cpu_count() or 1)
_TLS_VARIABLES = ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
HOW_TO = (
    "Start a Docker daemon, or name one in DOCKER_HOST (for Podman: `podman system service --time=0 "
    "unix:///run/podman.sock` and DOCKER_HOST=unix:///run/podman.sock), or use another backend "
    "(`SandboxSpec.backend='local'` needs no daemon)."
)
T = TypeVar("T")


class ApiError(SandboxBackendError):
    """The daemon answered with an error. `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """One daemon, found by DOCKER_HOST as the `docker` command finds it. Connects on first use.

    It stays with the daemon that it was made for: what is still to be removed from it is not looked for in
    another one when the variable changes.
    """

    def __init__(self) -> None:
        self.host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        """The daemon's address."""
        self._environment = {name: os.environ[name] for name in _TLS_VARIABLES if name in os.environ}
        self._threads = _threads()
        self._client: APIClient | None = None
        self._connecting = asyncio.Lock()
        self.info: Mapping[str, Any] = {}
        """What the daemon says about itself, since the first call."""
        self.streams: dict[str, set[Stream]] = {}
        """Conversations with commands, by container; ended with it."""

    async def call(self, what: str, function: Callable[[APIClient], T]) -> T:
        """Run `function` with docker-py's client on a thread; `what` words the errors.

        Raises:
            ApiError: the daemon said no. SandboxUnreachable, SandboxTimeout: it said nothing.
            SandboxUnavailable: there never was one.
        """
        client = await self.connect()
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: _translated(what, lambda: function(client))
        )

    async def stream(self, what: str, path: str, body: Mapping[str, object] | None = None) -> Stream:
        """Start a conversation: POST, after which the connection carries raw bytes both ways.

        Raises:
            ApiError: the daemon said no. SandboxUnreachable, SandboxTimeout: it said nothing.
        """
        client = await self.connect()
        payload = b"" if body is None else json.dumps(body).encode()
        head = (
            f"POST /v{client.api_version}{path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\n"
            f"Upgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        writer = None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reader, writer = await self._open(client)
                writer.write(head.encode() + payload)
                answer = await reader.readuntil(b"\r\n\r\n")
                status = int(answer.split(b" ", 2)[1])
                if status not in (101, 200):
                    raise ApiError(f"{what}: {await _error_text(reader, answer)}", status)
        except BaseException as error:
            if writer is not None:
                writer.transport.abort()
            if isinstance(error, TimeoutError):
                raise _no_answer(what) from error
            if isinstance(error, OSError | EOFError):
                raise SandboxUnreachable(f"{what}: the Docker daemon does not answer: {error}") from error
            raise
        return Stream(reader, writer)

    def end_streams(self, container: str) -> None:
        """Close what is left of conversations with a container's commands."""
        for stream in self.streams.pop(container, set()):
            stream.close()

    def close(self) -> None:
        """Give threads and connections back, once what they are doing is done. The next call has new ones."""
        self._threads.shutdown(wait=False)
        self._threads = _threads()
        if self._client is not None:
            self._client.close()
            self._client = None

    async def connect(self) -> APIClient:
        """docker-py's client; made by the first call. Raises SandboxUnavailable when there is no daemon."""
        async with self._connecting:
            if self._client is not None:
                return self._client
            loop = asyncio.get_running_loop()
            client, self.info = await loop.run_in_executor(self._threads, self._open_client)
            self._client = client
            return client

    async def _open(self, client: APIClient) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.host)
        if parts.scheme in ("unix", "http+unix"):
            return await asyncio.open_unix_connection(parts.path or parts.netloc, limit=1 << 20)
        context = None
        if client.cert or client.base_url.startswith("https"):
            trusted = client.verify if isinstance(client.verify, str) else None
            context = ssl.create_default_context(cafile=trusted)
            if not client.verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if isinstance(client.cert, tuple):
                context.load_cert_chain(*client.cert)
        return await asyncio.open_connection(parts.hostname, parts.port or 2375, ssl=context, limit=1 << 20)

    def _open_client(self) -> tuple[APIClient, Mapping[str, Any]]:
        try:
            import docker.constants
            import docker.errors
        except ImportError as error:
            raise MissingDependencyError("docker", "docker", "the Docker sandbox") from error
        if urlsplit(self.host).scheme not in ("unix", "tcp", "http", "https"):
            raise SandboxUnsupported(
                f"DOCKER_HOST={self.host}: only unix:// and tcp:// addresses work here. For a daemon "
                "behind SSH, forward its socket: ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST"
            )
        client = None
        try:
            version = docker.constants.MINIMUM_DOCKER_API_VERSION
            with contextlib.closing(self._new_client(version)) as first:
                version = str(first.version(api_version=False)["ApiVersion"])
            client = self._new_client(version)
            return client, client.info()
        except (docker.errors.DockerException, OSError, KeyError) as error:  # requests' errors are OSErrors
            if client is not None:
                client.close()
            raise SandboxUnavailable(f"no Docker daemon at {self.host}: {_short(error)}. {HOW_TO}") from error

    def _new_client(self, version: str) -> APIClient:
        """One that has not connected. Raises DockerException: docker-py cannot speak the version."""
        import docker
        import docker.utils

        from vime_sandboxes.docker_unix import use_closing_sockets

        settings = docker.utils.kwargs_from_env({"DOCKER_HOST": self.host, **self._environment})
        timeout_s = int(ANSWER_TIMEOUT_S)
        client = docker.APIClient(version=version, timeout=timeout_s, max_pool_size=THREADS, **settings)
        use_closing_sockets(client, self.host, timeout_s=timeout_s, max_connections=THREADS)
        return client


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="vime-docker")


def _translated(what: str, function: Callable[[], T]) -> T:
    import docker.errors
    import requests

    try:
        return function()
    except SandboxError:
        raise
    except docker.errors.APIError as error:
        raise ApiError(f"{what}: {error.explanation or error}", error.status_code or 0) from error
    except requests.exceptions.Timeout as error:
        raise _no_answer(what) from error
    except (requests.exceptions.RequestException, OSError) as error:
        if "timed out" in str(error):
            raise _no_answer(what) from error
        raise SandboxUnreachable(f"{what}: the Docker daemon cannot be reached: {_short(error)}") from error
    except docker.errors.DockerException as error:
        raise SandboxBackendError(f"{what}: {_short(error)}") from error


def _no_answer(what: str) -> SandboxTimeout:
    return SandboxTimeout(
        f"{what}: no answer from the Docker daemon within {ANSWER_TIMEOUT_S:g} s",
        limit="daemon answer",
        limit_s=ANSWER_TIMEOUT_S,
        elapsed_s=ANSWER_TIMEOUT_S,
    )


async def _error_text(reader: asyncio.StreamReader, head: bytes) -> str:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            text = (await reader.readexactly(min(int(line.split(b":")[1]), 1 << 16))).decode(errors="replace")
            break
    else:
        return head.split(b"\r\n", 1)[0].decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()


def _short(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text if len(text) <= 400 else text[:400] + "..."
