"""How many calls one server has at once: as many as it answers, which is found out as TCP does it.

That is additive increase and multiplicative decrease. Each call waits for a place. A server that answers
gets more of them, one that refuses (429, 503, 529) gets fewer, and one that names a time (Retry-After) gets
none until then. All of that waiting is the server's doing, so it is off the clock of `Limits.generation_s`
and `Limits.episode_s` (see `deadlines.py`), and has bounds of its own: MAX_QUEUED_S, MAX_PAUSE_S,
MAX_REFUSED_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from vime_agents.deadlines import off_the_clock
from vime_agents.errors import EngineError

REFUSALS = frozenset({429, 503, 529})
"""Statuses of a server that has too much to do; others say nothing about how much it can do."""
START = 8
"""Calls at once to begin with: as many as a small server bears, and three rounds of answers from 64."""
KEPT_PERCENT = 70
"""What a refusal leaves of the window. Refusals come at once and cost the server little, so the window need
not be halved to let anything drain, and stays closer to what the server bears."""
ANSWERS_A_STEP = 16
"""Fewest answers after which a window that was cut grows by one; a larger window has as many as it is wide.
So of a server that bears one or two calls at once, one in sixteen is refused, not every other one."""
MAX_QUEUED_S = 3600.0
"""Longest that a call waits for a place."""
MAX_PAUSE_S = 60.0
"""Longest that one Retry-After holds calls back; a server that still refuses then can say it again."""
MAX_REFUSED_S = 300.0
"""Longest that a call is refused again and again, and longest that a server may answer nobody before each
refusal counts: the limits of a minute pass, those of a day do not."""


class Admission:
    """The places for calls to one server, for all policies that use it.

    Guarantees: at most `window` calls are let in, between 1 and `ceiling`; who came first is let in first,
    and keeps that place in the queue when it is refused; a window is cut at most once for all calls that
    were under way together; whoever is cancelled leaves its place to the next. All times are the event
    loop's.
    """

    def __init__(self, ceiling: int, *, start: int = START, max_queued_s: float = MAX_QUEUED_S) -> None:
        """What does not explain itself.

        `ceiling`: most calls at once. `start`: to begin with; doubles with each round of answers until the
        first refusal, and grows by one a round from then on.
        """
        self.ceiling, self.max_queued_s = ceiling, max_queued_s
        self.window = min(start, ceiling)
        """Calls that may be at the server at once."""
        self.in_flight = 0
        """Calls that have a place."""
        self.most_at_once = 0
        """Most that ever had one at once."""
        self._fast_below = ceiling  # TCP's slow start threshold
        self._answered = 0  # since the window last changed
        self._answered_since_cut = False
        self._num_answers = self._num_refusals = 0
        self._cuts = 0
        self._refusing_since: float | None = None
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._num_calls = 0
        self._queue: list[tuple[int, asyncio.Future[None]]] = []

    def call(self) -> AdmittedCall:
        """One call, that takes its place in the queue now, with all its tries."""
        self._num_calls += 1
        return AdmittedCall(self, self._num_calls)

    def pause(self, wait_s: float) -> None:
        """Nobody is let in for so many seconds, at most MAX_PAUSE_S: the server asked for it."""
        until = asyncio.get_running_loop().time() + min(wait_s, MAX_PAUSE_S)
        self._paused_until = max(self._paused_until, until)

    async def _enter(self, number: int) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (number, place))
        self._let_in()
        if place.done():
            return
        try:
            with off_the_clock():
                async with asyncio.timeout(self.max_queued_s):
                    await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._leave()
            else:
                self._queue = [entry for entry in self._queue if entry[1] is not place]
                heapq.heapify(self._queue)
                self._let_in()
            if isinstance(error, TimeoutError):
                raise EngineError(f"no place for the call within {self.max_queued_s:g} s") from error
            raise

    def _leave(self) -> None:
        self.in_flight -= 1
        self._let_in()

    def _let_in(self) -> None:
        """Give away the places that are free."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        if self._queue and loop.time() < self._paused_until:
            self._timer = loop.call_at(self._paused_until, self._let_in)
            return
        while self._queue and self.in_flight < self.window:
            _, place = heapq.heappop(self._queue)
            if not place.cancelled():
                self.in_flight += 1
                self.most_at_once = max(self.most_at_once, self.in_flight)
                place.set_result(None)

    def _success(self) -> None:
        self._refusing_since, self._answered_since_cut = None, True
        self._num_answers += 1
        if self.in_flight < self.window:
            return  # nobody waits for more
        self._answered += 1
        enough = 1 if self.window < self._fast_below else max(self.window, ANSWERS_A_STEP)
        if self.window < self.ceiling and self._answered >= enough:
            self.window, self._answered = self.window + 1, 0

    def _refusal(self, cuts_before: int, *, is_news: bool) -> None:
        if self._refusing_since is None:
            self._refusing_since = asyncio.get_running_loop().time()
        if not is_news or cuts_before < self._cuts:
            return  # it was sent before the last cut
        self._cuts += 1
        self.window, self._answered = max(1, self.window * KEPT_PERCENT // 100), 0
        if self._answered_since_cut or self._cuts == 1:
            # Else it answered nobody in between: an outage, which says nothing about how much it bears.
            self._fast_below, self._answered_since_cut = self.window, False


class AdmittedCall:
    """One call and its tries."""

    def __init__(self, admission: Admission, number: int) -> None:
        """Made by `Admission.call`."""
        self.admission, self._number = admission, number
        self._refused_since: float | None = None
        self._answers_before = self._refusals_before = 0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """A place at the server, once there is one, for the next try. Raises EngineError: MAX_QUEUED_S."""
        await self.admission._enter(self._number)
        try:
            yield Place(self)
        finally:
            self.admission._leave()

    @property
    def patient(self) -> bool:
        """Whether a refusal is worth another try, however many there were: MAX_REFUSED_S."""
        now = asyncio.get_running_loop().time()
        since = (self._refused_since, self.admission._refusing_since)
        return all(at is None or now - at < MAX_REFUSED_S for at in since)


class Place:
    """What one try found out."""

    def __init__(self, call: AdmittedCall) -> None:
        """Made by `AdmittedCall.place`."""
        self._call, self._cuts = call, call.admission._cuts

    def answered(self) -> None:
        """The server had room for the call, whatever it said."""
        self._call.admission._success()

    def refused(self) -> None:
        """The server has too much to do."""
        call, admission = self._call, self._call.admission
        is_news = True
        if call._refused_since is None:
            call._refused_since = asyncio.get_running_loop().time()
            call._answers_before = admission._num_answers
        else:
            # Some calls are refused for what they are (`Request too large`), however little there is to do.
            others_answered = admission._num_answers - call._answers_before
            others_refused = admission._num_refusals - call._refusals_before
            is_news = others_answered < ANSWERS_A_STEP and others_refused > 0
        admission._num_refusals += 1
        call._refusals_before = admission._num_refusals
        admission._refusal(self._cuts, is_news=is_news)


class Admissions:
    """An Admission for each server, whoever asks it."""

    def __init__(self, ceiling: int) -> None:
        """`ceiling`: most calls at once to each of them."""
        self.ceiling = ceiling
        self._of: dict[tuple[object, ...], Admission] = {}

    def of(self, base_url: str) -> Admission:
        """The one for this server; the same for the same base URL, however it is spelled."""
        url = urlsplit(base_url)
        port = url.port or {"http": 80, "https": 443}.get(url.scheme)
        server = (url.scheme, url.hostname, port, url.path.rstrip("/"))
        return self._of.setdefault(server, Admission(self.ceiling))
