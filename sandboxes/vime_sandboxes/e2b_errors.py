"""What E2B's client raises -> our errors, and which of its calls are tried again.

A call of the control plane is repeated, within a deadline, when the service refused it (too many requests, a
fault of its own) or could not be reached. What runs a program is never repeated: it may have started.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import e2b
import httpx
from connectrpc.errors import ConnectError
from e2b.envd.rpc import handle_rpc_exception, is_transport_failure
from e2b.exceptions import SandboxNotFoundException, SandboxNotRunningException, SandboxUnreachableException

from vime_agents.errors import (
    SandboxBackendError,
    SandboxDead,
    SandboxDiskFull,
    SandboxError,
    SandboxFileNotFound,
    SandboxPermissionError,
    SandboxTimeout,
    SandboxUnavailable,
    SandboxUnreachable,
    SandboxUnsupported,
)

T = TypeVar("T")

CONTROL_DEADLINE_S = 60.0
"""For one control-plane call, with all of its repetitions."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_JITTER = random.Random()  # not the shared generator: who seeds that gets the same numbers, retried or not
_SERVICE_ERRORS = (
    e2b.SandboxException,
    e2b.AuthenticationException,
    e2b.ServiceBusyException,
    httpx.HTTPError,
    ConnectError,
    ValueError,  # an answer that is not JSON, of a proxy between
)


# The order matters: several of E2B's are subclasses of its time-out.
_KINDS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[SandboxError]], ...] = (
    ((SandboxNotRunningException, SandboxNotFoundException), SandboxDead),
    (SandboxUnreachableException, SandboxUnreachable),
    ((e2b.TimeoutException, httpx.TimeoutException, TimeoutError), SandboxTimeout),
    (e2b.FileNotFoundException, SandboxFileNotFound),
    (e2b.NotEnoughSpaceException, SandboxDiskFull),
    (httpx.TransportError, SandboxUnreachable),
)


def translate(error: Exception, what: str) -> SandboxError:
    """One of ours."""
    if isinstance(error, ConnectError):
        known = handle_rpc_exception(error)
        if isinstance(known, asyncio.CancelledError):  # the library hides the caller's cancellation
            raise known
        if is_transport_failure(error):
            return SandboxUnreachable(f"{what}: {error}")
        error = known
    text = f"{what}: {error}"
    if isinstance(error, e2b.AuthenticationException):
        if "invalid username" in text:
            return SandboxUnsupported(text)
        return SandboxUnavailable(f"{text}. Set E2B_API_KEY to a key of https://e2b.dev/dashboard?tab=keys")
    if getattr(error, "status_code", None) == 403:
        return SandboxPermissionError(text)
    return next((ours for theirs, ours in _KINDS if isinstance(error, theirs)), SandboxBackendError)(text)


def translate_creation(error: Exception, template: str) -> SandboxError:
    """Of a refused creation: what asking again does not change is told apart."""
    status = getattr(error, "status_code", None)
    if status == 404 or isinstance(error, e2b.NotFoundException):
        return SandboxUnsupported(f"E2B has no template {template!r}: {error}")
    if status in (400, 403, 422):
        return SandboxUnsupported(f"E2B refuses a sandbox of template {template!r}: {error}")
    return translate(error, f"creating a sandbox of template {template!r}")


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors of E2B's client leave the block as ours."""
    try:
        yield
    except _SERVICE_ERRORS as error:
        raise translate(error, what) from error


def may_be_repeated(error: Exception, *, idempotent: bool) -> bool:
    """Whether the call was refused, or never arrived; or, for an idempotent one, may not have arrived."""
    if isinstance(error, e2b.RateLimitException | e2b.ServiceBusyException):
        return True
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return True
    if isinstance(error, httpx.TransportError | ValueError):
        return idempotent
    status = getattr(error, "status_code", None)
    return idempotent and isinstance(status, int) and status >= 500


async def control(
    call: Callable[[], Awaitable[T]],
    what: str,
    *,
    idempotent: bool = True,
    deadline_s: float = CONTROL_DEADLINE_S,
    translation: Callable[[Exception], SandboxError] | None = None,
) -> T:
    """Do a control-plane call, again while that may help, with growing random pauses.

    E2B's client itself repeats what is refused a few times first, and heeds Retry-After.

    Raises:
        SandboxTimeout: the deadline passed, and there was no answer at all.
        SandboxError: as `translation` says, of the last answer.
    """
    end, pause_s = time.monotonic() + deadline_s, _FIRST_PAUSE_S
    translation = translation or (lambda error: translate(error, what))
    answer: Exception | None = None
    while True:
        try:
            async with asyncio.timeout(max(end - time.monotonic(), 0.0)):
                return await call()
        except TimeoutError as error:
            if answer is not None:
                raise translation(answer) from answer
            raise SandboxTimeout(
                f"{what}: no answer in {deadline_s:g} s", limit=what, limit_s=deadline_s, elapsed_s=deadline_s
            ) from error
        except _SERVICE_ERRORS as error:
            wait_s = pause_s * _JITTER.uniform(0.5, 1.0)
            again = may_be_repeated(error, idempotent=idempotent) and time.monotonic() + wait_s < end
            if not again:
                raise translation(error) from error
            answer = error
        await asyncio.sleep(wait_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
