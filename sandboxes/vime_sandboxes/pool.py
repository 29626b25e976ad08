"""Sandboxes that are ready before they are asked for, and never more than the host can hold.

No sandbox is ever lent twice. What was lent is ended when it is closed, and another one of the same spec is
made in its place, off the caller's path: no trick of the last user's can wait for the next one. Where that
takes setup commands, it begins from a snapshot of the first, if a snapshot holds all that they did.

Everything of a pool runs on the input/output thread, so that it serves callers on any event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from vime_agents import registry
from vime_agents.errors import SandboxError, SandboxUnavailable
from vime_agents.sandbox import SandboxInfo, SandboxProvider, SandboxSpec, Snapshot
from vime_sandboxes.admission import Admission
from vime_sandboxes.io_thread import on_io_thread, submit
from vime_sandboxes.managed import ManagedProvider
from vime_sandboxes.pool_shelf import Box, Key, Request, Shelf
from vime_sandboxes.pool_stats import PoolStats, Recorder
from vime_sandboxes.wrapper import SandboxWrapper

CHECK_TIMEOUT_S = 5.0
"""For a warm sandbox to show that it lives."""
CLOSE_TIMEOUT_S = 60.0
"""For what is being made or ended, once the pool is closed."""
_CLOSED = "the pool of sandboxes is closed"


class PooledSandbox(SandboxWrapper):
    """A sandbox that makes room in its pool when it is closed."""

    def __init__(self, box: Box, end: Callable[[Box], Coroutine[Any, Any, None]]) -> None:
        super().__init__(box.sandbox)
        self._box, self._end = box, end

    async def close(self) -> None:
        """End it. Goes on in the background when the caller is cancelled."""
        await asyncio.shield(asyncio.wrap_future(submit(self._end(self._box))))


class SandboxPool:
    """Lends sandboxes of every backend; see `vime_agents.sandbox.SandboxProvider`.

    Guarantees: at most `size` sandboxes wait to be lent, none longer than `idle_s`; a spec is kept warm from
    its second use on; callers are served in turn, spec by spec, and within a spec in the order in which they
    came; a caller that is cancelled takes nothing.
    """

    name = "pool"

    def __init__(
        self,
        *,
        size: int = 4,
        max_sandboxes: int | None = None,
        memory_mb: int | None = None,
        max_processes: int | None = None,
        share: float = 1.0,
        idle_s: float = 300.0,
        run: str = "",
        make_provider: Callable[[str], SandboxProvider] | None = None,
    ) -> None:
        """A pool; it makes nothing yet.

        Args:
            size: sandboxes to keep warm, of all specs together; 0: each is made when it is asked for.
            max_sandboxes: open at once; None: as many as their limits allow.
            memory_mb: for the memory limits of all together; None: nine tenths of the host's.
            max_processes: for the process limits of all together; None: nine tenths of the host's.
            share: of those nine tenths, when several processes have a pool on this host.
            idle_s: seconds after which a warm sandbox that nobody wanted is ended.
            run: name of the run, for the sandboxes' labels.
            make_provider: backend -> its provider; None: the registered one, with the ledger of this user.
        """
        self._size, self._idle_s = size, idle_s
        self._admission = Admission(
            max_sandboxes=max_sandboxes, memory_mb=memory_mb, max_processes=max_processes, share=share
        )
        self._make_provider = make_provider or (
            lambda backend: ManagedProvider(registry.sandbox_provider(backend), run=run)
        )
        self._providers: dict[str, SandboxProvider] = {}
        # In the order of whose turn it is.
        self._shelves: dict[Key, Shelf] = {}
        self._boxes: set[Box] = set()
        self._ending: dict[Box, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._num_handing = 0
        self._timer: asyncio.TimerHandle | None = None
        self._recorder = Recorder()
        self._closing: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------------- what everybody may call

    async def preflight(self) -> None:
        """Of each backend that was used so far."""
        for provider in list(self._providers.values()):
            await provider.preflight()

    async def create(
        self,
        spec: SandboxSpec,
        *,
        labels: Mapping[str, str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> PooledSandbox:
        """A sandbox that nobody had before; waits for its turn while there is no room for it.

        With `labels` of its own, or a `snapshot`, it is made for this call alone: warm ones have neither.

        Raises:
            SandboxUnsupported: there can never be room for it. Otherwise as the backend's `create`.
        """
        request = Request(spec, snapshot, tuple(sorted((labels or {}).items())))
        try:
            box = await asyncio.shield(asyncio.wrap_future(submit(self._take(request))))
        except asyncio.CancelledError:
            submit(self._abandon(request))
            raise
        return PooledSandbox(box, self._end)

    def check_room(self, spec: SandboxSpec, count: int) -> None:
        """Raises SandboxUnsupported when there can never be room for `count` of them at once."""
        self._admission.check(spec, count)

    async def prefill(self, spec: SandboxSpec, count: int) -> None:
        """Have `count` warm ones of `spec`, as far as `size` and the host allow. Raises as `create` does."""
        await asyncio.shield(asyncio.wrap_future(submit(self._prefill(spec, count))))

    async def stats(self) -> PoolStats:
        """What it did so far."""
        return await on_io_thread(self._stats())

    async def delete_snapshot(self, snapshot: Snapshot) -> None:
        """Free what it takes. Idempotent."""
        await self._provider(snapshot.spec.backend).delete_snapshot(snapshot)

    async def list(self) -> Sequence[SandboxInfo]:
        """Of each backend that was used so far."""
        return [info for p in list(self._providers.values()) for info in await p.list()]

    async def remove(self, sandbox_id: str) -> None:
        """End a sandbox of any owner, on each backend that was used so far. Idempotent."""
        for provider in list(self._providers.values()):
            await provider.remove(sandbox_id)

    async def aclose(self) -> None:
        """End every sandbox, lent ones too; whoever waits for one gets SandboxUnavailable. Idempotent."""
        await asyncio.shield(asyncio.wrap_future(submit(self._close())))

    # ------------------------------------------------------------------------- on the io thread only

    def _provider(self, backend: str) -> SandboxProvider:
        if backend not in self._providers:
            self._providers[backend] = self._make_provider(backend)
        return self._providers[backend]

    def _shelf(self, request: Request) -> Shelf:
        if self._closing is not None:
            raise SandboxUnavailable(_CLOSED)
        self._admission.check(request.spec)
        self._provider(request.spec.backend)
        shelf = self._shelves.setdefault(request.key, Shelf(request))
        shelf.used_at = time.monotonic()
        shelf.num_requests += 1
        return shelf

    async def _take(self, request: Request) -> Box:
        begin = time.monotonic()
        request.shelf = self._shelf(request)
        request.answer = asyncio.get_running_loop().create_future()
        request.shelf.waiting.append(request)
        self._dispatch()
        box = await request.answer
        self._recorder.wait_s.append(time.monotonic() - begin)
        return box

    async def _abandon(self, request: Request) -> None:
        """Its caller was cancelled."""
        if request.shelf is None or request.answer is None:
            return
        if request in request.shelf.waiting:
            request.shelf.waiting.remove(request)
        if not request.answer.cancel() and request.answer.exception() is None:
            await self._end(request.answer.result())
        self._dispatch()

    def _dispatch(self) -> None:
        """Serve whoever can be served; begin what is missing."""
        if self._closing is not None:
            return
        for shelf in self._shelves.values():
            while shelf.waiting and shelf.warm:
                self._num_handing += 1
                self._start(self._hand_over(shelf.warm.pop(), shelf.waiting.popleft()))
        while (key := next((k for k, s in self._shelves.items() if s.num_missing > 0), None)) is not None:
            # Whoever's turn it is waits for room, and all behind it: a large one would never get any.
            if not self._make_room(self._shelves[key].spec):
                return
            self._shelves[key] = self._shelves.pop(key)
            self._begin(self._shelves[key])
        self._refill()

    def _make_room(self, spec: SandboxSpec) -> bool:
        """Whether there is; if not, a warm sandbox goes, and once it is gone this is asked again."""
        if self._admission.fits(spec):
            return True
        idle = [box for shelf in self._shelves.values() for box in shelf.warm]
        if idle and not self._ending:
            self._start(self._end(min(idle, key=lambda box: box.idle_since)))
        return False

    def _refill(self) -> None:
        """Make warm ones of what was wanted last, while nobody waits: a start would hold the others up."""
        if self._num_handing or any(shelf.waiting for shelf in self._shelves.values()):
            return
        # What nobody asked for since then would be ended as idle, made again, ended ...
        since = time.monotonic() - self._idle_s
        for shelf in sorted(self._shelves.values(), key=lambda s: -s.used_at):
            while (
                shelf.is_kept
                and shelf.used_at > since
                and sum(s.num_warm for s in self._shelves.values()) < self._size
                and self._admission.fits(shelf.spec)
            ):
                self._begin(shelf)

    def _begin(self, shelf: Shelf) -> None:
        shelf.num_coming += 1
        self._admission.take(shelf.spec)
        self._start(self._boot(shelf))

    async def _boot(self, shelf: Shelf) -> None:
        begin = time.monotonic()
        try:
            sandbox = await self._provider(shelf.spec.backend).create(
                shelf.spec, labels=shelf.labels, snapshot=shelf.snapshot
            )
        except BaseException as error:
            self._admission.free(shelf.spec)
            shelf.num_coming -= 1
            self._recorder.failures[type(error).__name__] += 1
            if not isinstance(error, Exception):
                raise
            shelf.failure = error
            if shelf.waiting:
                _answer(shelf.waiting.popleft(), error)
            self._dispatch()
            return
        shelf.failure = None
        self._recorder.boots += 1
        self._recorder.boot_s.append(time.monotonic() - begin)
        box = Box(sandbox, shelf)
        self._boxes.add(box)
        await shelf.remember(sandbox)
        shelf.num_coming -= 1
        if shelf.waiting:
            self._lend(box, shelf.waiting.popleft())
        else:
            self._put(box)
        self._dispatch()

    def _put(self, box: Box) -> None:
        """Among the warm ones, if there is room."""
        box.idle_since = time.monotonic()
        box.shelf.warm.append(box)
        warm = [b for shelf in self._shelves.values() for b in shelf.warm]
        if self._closing is not None or len(warm) > self._size:
            self._start(self._end(min(warm, key=lambda b: b.idle_since)))
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._expire)

    async def _hand_over(self, box: Box, request: Request) -> None:
        """Lend a warm sandbox if it lives, with its whole time before it."""
        begin = time.monotonic()
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                _, lives = await asyncio.gather(box.sandbox.extend(box.shelf.spec.ttl_s), box.sandbox.alive())
        except (SandboxError, TimeoutError):
            lives = False
        finally:
            self._num_handing -= 1
        if self._closing is not None:
            _answer(request, SandboxUnavailable(_CLOSED))
        if lives and self._lend(box, request):
            self._recorder.warm_hand_outs += 1
            self._recorder.hand_out_s.append(time.monotonic() - begin)
        elif lives:
            self._put(box)
        else:
            self._recorder.failures["dead"] += 1
            if request.answer is not None and not request.answer.done():
                box.shelf.waiting.appendleft(request)
            self._start(self._end(box))
        self._dispatch()

    def _lend(self, box: Box, request: Request) -> bool:
        """Whether its caller still wants it."""
        if not _answer(request, box):
            return False
        box.lent = True
        self._recorder.hand_outs += 1
        return True

    async def _end(self, box: Box) -> None:
        """Close it and make room. Once begun, it goes on."""
        if box in self._boxes and box not in self._ending:
            if box in box.shelf.warm:
                box.shelf.warm.remove(box)
            box.lent = False
            self._ending[box] = asyncio.ensure_future(self._close_box(box))
        if box in self._ending:
            await asyncio.shield(self._ending[box])

    async def _close_box(self, box: Box) -> None:
        try:
            await box.sandbox.close()
        finally:
            self._boxes.discard(box)
            del self._ending[box]
            self._admission.free(box.shelf.spec)
            self._dispatch()

    def _expire(self) -> None:
        """End what was idle for too long, and forget what nobody uses any more."""
        self._timer = None
        before = time.monotonic() - self._idle_s
        for key, shelf in list(self._shelves.items()):
            for box in [b for b in shelf.warm if b.idle_since <= before]:
                self._start(self._end(box))
            if shelf.is_unused(before):
                del self._shelves[key]
                self._start(self._forget(shelf))
        if self._shelves:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s / 4, self._expire)

    async def _forget(self, shelf: Shelf) -> None:
        if shelf.owns_snapshot and shelf.snapshot is not None:
            await self._provider(shelf.spec.backend).delete_snapshot(shelf.snapshot)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a sandbox that was not confirmed to be gone: it is in the ledger still
            self._recorder.failures[type(error).__name__] += 1

    async def _prefill(self, spec: SandboxSpec, count: int) -> None:
        shelf = self._shelf(Request(spec))
        shelf.num_requests += 1  # wanted again, as far as anybody knows
        while shelf.num_warm < min(count, self._size) and self._admission.fits(spec):
            self._begin(shelf)
        while shelf.num_coming:
            await asyncio.wait(set(self._tasks), return_when=asyncio.FIRST_COMPLETED)
        if shelf.failure is not None:
            raise shelf.failure

    async def _stats(self) -> PoolStats:
        return self._recorder.stats(
            open_now=self._admission.open.sandboxes,
            lent=sum(box.lent for box in self._boxes),
            warm=sum(len(shelf.warm) for shelf in self._shelves.values()),
            waiting=sum(len(shelf.waiting) for shelf in self._shelves.values()),
        )

    async def _close(self) -> None:
        self._closing = self._closing or asyncio.ensure_future(self._close_all())
        await asyncio.shield(self._closing)

    async def _close_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for shelf in self._shelves.values():
            while shelf.waiting:
                _answer(shelf.waiting.popleft(), SandboxUnavailable(_CLOSED))
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()  # the backend and the ledger see to what comes of it
        results = await asyncio.gather(
            *(self._end(box) for box in list(self._boxes)),
            *(self._forget(shelf) for shelf in self._shelves.values()),
            return_exceptions=True,
        )
        results += await asyncio.gather(
            *(provider.aclose() for provider in self._providers.values()), return_exceptions=True
        )
        self._shelves.clear()
        for error in results:
            if isinstance(error, BaseException):
                raise error


def _answer(request: Request, answer: Box | Exception) -> bool:
    """Whether somebody still waits for it."""
    if request.answer is None or request.answer.done():
        return False
    if isinstance(answer, Box):
        request.answer.set_result(answer)
    else:
        request.answer.set_exception(answer)
    return True
