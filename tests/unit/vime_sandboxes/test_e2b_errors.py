"""What E2B's client raises becomes the right one of our errors, and only what may help is repeated."""

from __future__ import annotations

import asyncio
import random

import e2b
import httpx
import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError

from vime_agents.errors import (
    SandboxBackendError,
    SandboxDead,
    SandboxDiskFull,
    SandboxError,
    SandboxFileNotFound,
    SandboxTimeout,
    SandboxUnavailable,
    SandboxUnreachable,
    SandboxUnsupported,
)
from vime_sandboxes import e2b_errors
from vime_sandboxes.e2b_errors import control, may_be_repeated, translate, translate_creation


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (e2b.SandboxNotRunningException("gone"), SandboxDead),
        (e2b.SandboxNotFoundException("gone"), SandboxDead),
        (e2b.SandboxUnreachableException("where"), SandboxUnreachable),
        (e2b.TimeoutException("slow"), SandboxTimeout),
        (httpx.ReadTimeout("slow"), SandboxTimeout),
        (e2b.AuthenticationException("401: who"), SandboxUnavailable),
        (e2b.AuthenticationException("invalid username: 'x'"), SandboxUnsupported),
        (e2b.FileNotFoundException("file"), SandboxFileNotFound),
        (e2b.NotEnoughSpaceException("full"), SandboxDiskFull),
        (e2b.RateLimitException("429"), SandboxBackendError),
        (e2b.ServiceBusyException("503"), SandboxBackendError),
        (e2b.SandboxException("500", status_code=500), SandboxBackendError),
        (httpx.ConnectError("refused"), SandboxUnreachable),
        (httpx.RemoteProtocolError("cut"), SandboxUnreachable),
        (ConnectError(Code.UNAVAILABLE, "The sandbox was not found"), SandboxDead),
        (ConnectError(Code.UNAVAILABLE, "port is not open"), SandboxUnreachable),
        (ConnectError(Code.DEADLINE_EXCEEDED, "late"), SandboxTimeout),
        (ConnectError(Code.UNAUTHENTICATED, "invalid username: 'x'"), SandboxUnsupported),
        (ConnectError(Code.INTERNAL, "oh"), SandboxBackendError),
        (ValueError("no JSON"), SandboxBackendError),
    ],
)
def test_each_error_has_its_kind(error: Exception, kind: type[SandboxError]) -> None:
    found = translate(error, "doing it")
    assert type(found) is kind
    assert "doing it" in str(found)


def test_an_authentication_error_names_the_variable() -> None:
    assert "E2B_API_KEY" in str(translate(e2b.AuthenticationException("401"), "x"))


def test_a_hidden_cancellation_stays_one() -> None:
    error = ConnectError(Code.CANCELED, "Request was cancelled")
    error.__cause__ = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        translate(error, "x")


def test_a_connection_that_fails_is_unreachable() -> None:
    error = ConnectError(Code.UNAVAILABLE, "connection refused")
    error.__cause__ = ConnectionError("refused")
    assert type(translate(error, "x")) is SandboxUnreachable


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_a_creation_that_cannot_succeed_is_unsupported(status: int) -> None:
    error = translate_creation(e2b.SandboxException("no", status_code=status), "mine")
    assert type(error) is SandboxUnsupported
    assert "'mine'" in str(error)


@pytest.mark.parametrize(
    ("error", "always", "idempotent"),
    [
        (e2b.RateLimitException("429"), True, True),
        (e2b.ServiceBusyException("503"), True, True),
        (httpx.ConnectError("refused"), True, True),
        (httpx.ReadError("cut"), False, True),
        (ValueError("no JSON"), False, True),
        (e2b.SandboxException("500", status_code=500), False, True),
        (e2b.SandboxException("400", status_code=400), False, False),
        (e2b.AuthenticationException("401"), False, False),
        (e2b.SandboxNotFoundException("404"), False, False),
    ],
)
def test_what_may_have_been_done_is_repeated_only_when_that_does_no_harm(
    error: Exception, always: bool, idempotent: bool
) -> None:
    assert may_be_repeated(error, idempotent=False) is always
    assert may_be_repeated(error, idempotent=True) is idempotent


class Service:
    """Fails a few times, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    async def call(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def test_a_call_is_repeated_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e2b_errors, "_FIRST_PAUSE_S", 0.001)
    service = Service(e2b.RateLimitException("429"), httpx.ConnectError("x"), e2b.ServiceBusyException("503"))
    before = random.getstate()
    assert await control(service.call, "asking") == "done"
    assert service.calls == 4
    assert random.getstate() == before  # whose numbers are the caller's


async def test_a_call_is_repeated_within_its_deadline_only() -> None:
    service = Service(*[e2b.RateLimitException("429: too many")] * 1000)
    with pytest.raises(SandboxBackendError, match="too many"):
        await control(service.call, "asking", deadline_s=0.05)
    assert service.calls < 1000


async def test_the_last_answer_is_told_when_the_deadline_ends_a_later_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(e2b_errors, "_FIRST_PAUSE_S", 0.001)
    service = Service(e2b.RateLimitException("429: too many"))

    async def silent() -> str:
        return await service.call() if service.errors else await asyncio.sleep(60, "late")

    with pytest.raises(SandboxBackendError, match="too many"):
        await control(silent, "asking", deadline_s=0.2)
    with pytest.raises(SandboxTimeout, match="no answer in"):
        await control(silent, "asking", deadline_s=0.05)


async def test_what_repeating_does_not_change_is_raised_at_once() -> None:
    service = Service(e2b.AuthenticationException("401"))
    with pytest.raises(SandboxUnavailable):
        await control(service.call, "asking")
    assert service.calls == 1


async def test_a_call_that_hangs_ends_with_its_limit() -> None:
    with pytest.raises(SandboxTimeout, match=r"asking: no answer in 0\.05 s") as caught:
        await control(asyncio.Event().wait, "asking", deadline_s=0.05)
    assert (caught.value.limit, caught.value.limit_s) == ("asking", 0.05)
