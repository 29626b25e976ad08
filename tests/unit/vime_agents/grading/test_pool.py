from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.vime_agents.grading import graders
from vime_agents.errors import (
    ConfigError,
    ContractError,
    GraderCrashed,
    GraderError,
    GraderOutOfMemory,
    GraderTimeout,
    Unscorable,
)
from vime_agents.grading import GraderLimits, GraderPool, default_pool

SHORT = GraderLimits(timeout_s=0.3)
ROOMY = GraderLimits(timeout_s=60)


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(size=4, limits=ROOMY) as pool:
        yield pool


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until_gone(*pids: int) -> None:
    async with asyncio.timeout(20):
        while any(alive(pid) for pid in pids):
            await asyncio.sleep(0.01)


async def until_written(path: Path) -> int:
    async with asyncio.timeout(20):
        while not (path.exists() and path.read_text()):
            await asyncio.sleep(0.01)
    return int(path.read_text())


async def test_answers_come_back_as_json_has_them(pool: GraderPool) -> None:
    assert await pool.run(graders.add, (1, 2.5)) == 3.5
    assert await pool.run(graders.add, (1,), {"b": np_inf()}) == math.inf
    assert await pool.run(graders.add_later, (1, 2)) == 3
    assert await pool.run(graders.Graders.twice, (4,)) == 8
    assert await pool.run(graders.give, ("numpy",)) == 0.5
    assert await pool.run(graders.give, ("nested",)) == {"a": [1, None, True]}
    assert await pool.run(graders.shell, ("echo $((6 * 7))",)) == "42\n"
    assert await pool.run(graders.print_a_lot) == 1.0


def np_inf() -> float:
    return math.inf


async def test_text_goes_both_ways_whatever_it_holds(pool: GraderPool) -> None:
    text = "\0\ud800\u2028" + "x" * 300_000
    assert await pool.run(graders.Graders.twice, (text,)) == text * 2


async def test_each_grading_has_a_process_of_its_own(pool: GraderPool) -> None:
    assert [await pool.run(graders.remember) for _ in range(3)] == [1, 1, 1]


async def test_what_graders_need_is_prepared_once_and_in_the_server_alone(pool: GraderPool) -> None:
    for _ in range(2):
        assert await pool.run(graders.what_is_prepared) == ["broken", "once"]
    assert graders.prepared == []


async def test_a_grader_that_does_not_end_is_ended(pool: GraderPool) -> None:
    with pytest.raises(
        GraderTimeout, match=r"graders\.loop: no answer within 0\.3 s.*printed: round and round"
    ):
        await pool.run(graders.loop, limits=SHORT)
    with pytest.raises(GraderTimeout):
        await pool.run(graders.loop_deaf, limits=SHORT)


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (graders.segfault, (), r"killed by SIGSEGV without an answer.*Segmentation fault"),
        (graders.leave, (0,), r"exited with code 0 without an answer; it printed: leaving"),
        (graders.leave, (3,), r"exited with code 3 without an answer"),
        (graders.give, ("long",), r"its answer has more than 1048576 bytes"),
        (graders.forge, ('{"kind": "ok"}',), r"its answer is of the kind 'ok'"),
        (graders.forge, ("[" * 100_000,), r"its answer is not JSON of the right shape"),
        (graders.forge, ("",), r"its answer is not JSON"),
        (graders.forge_a_kind, (), r"its answer is of the kind 'timeout'"),
    ],
)
async def test_a_grader_that_breaks_is_a_crash_and_the_next_one_works(
    pool: GraderPool, function, args: tuple, message: str
) -> None:
    with pytest.raises(GraderCrashed, match=rf"(?s){function.__name__}: .*{message}"):
        await pool.run(function, args)
    assert await pool.run(graders.add, (1, 1)) == 2


@pytest.mark.parametrize(
    ("function", "args", "error", "message"),
    [
        (
            graders.raise_error,
            ("no\0 way",),
            GraderError,
            r"ValueError: no\0 way \(line \d+ of .*graders\.py\)",
        ),
        (graders.exit_politely, (), GraderError, "SystemExit: done"),
        (graders.give, ("set",), GraderError, "a grader returns numbers, text, lists and dicts, got a set"),
        (graders.give, ("nothing",), GraderError, "KeyError: 'nothing'"),
        (graders.no_key, (), Unscorable, "^the task has no answer$"),
    ],
)
async def test_what_a_grader_raises_is_its_failure(
    pool: GraderPool, function, args: tuple, error: type, message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        await pool.run(function, args)
    assert raised.type is error


async def test_memory_is_limited(pool: GraderPool) -> None:
    limits = GraderLimits(timeout_s=60, memory_mb=200)
    assert await pool.run(graders.eat, (50,), limits=limits) == 50 << 20
    with pytest.raises(GraderOutOfMemory, match=r"eat: needs more than 200 MB"):
        await pool.run(graders.eat, (250,), limits=limits)


async def test_a_fork_bomb_is_ended_with_all_its_processes(pool: GraderPool, tmp_path: Path) -> None:
    with pytest.raises(GraderCrashed, match="more than 8 processes at once"):
        await pool.run(graders.fork_without_end, (str(tmp_path / "pids"),))
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert pids
    assert not any(alive(pid) for pid in pids)


async def test_a_grader_that_forks_answers_once(pool: GraderPool) -> None:
    assert [await pool.run(graders.fork_and_answer) for _ in range(5)] == [0.25] * 5


async def test_what_a_grader_leaves_behind_is_ended(pool: GraderPool, tmp_path: Path) -> None:
    assert await pool.run(graders.leave_a_child, (str(tmp_path / "pid"),)) == 1.0
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_a_grader_that_kills_who_watches_it_leaves_nothing_behind(
    pool: GraderPool, tmp_path: Path
) -> None:
    with pytest.raises(GraderCrashed, match="kill_keeper: the process that watches it is gone"):
        await pool.run(graders.kill_keeper, (str(tmp_path / "pid"),))
    await until_gone(int((tmp_path / "pid").read_text()))
    assert await pool.run(graders.add, (1, 1)) == 2


async def test_a_grader_ends_with_the_call_that_is_cancelled(pool: GraderPool, tmp_path: Path) -> None:
    call = asyncio.ensure_future(pool.run(graders.touch_and_wait, (str(tmp_path / "pid"),)))
    pid = await until_written(tmp_path / "pid")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_gone(pid)


async def test_no_more_than_size_run_at_once(tmp_path: Path) -> None:
    with GraderPool(size=2, limits=ROOMY) as pool:
        calls = [
            asyncio.ensure_future(pool.run(graders.touch_and_wait, (str(tmp_path / str(n)),)))
            for n in range(3)
        ]
        async with asyncio.timeout(20):
            while len(list(tmp_path.iterdir())) < 2:
                await asyncio.sleep(0.01)
        assert sorted(f.name for f in tmp_path.iterdir()) == ["0", "1"]
        calls[0].cancel()
        await until_written(tmp_path / "2")
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_one_pool_serves_several_event_loops(pool: GraderPool) -> None:
    found = []
    other = threading.Thread(target=lambda: found.append(asyncio.run(pool.run(graders.add, (2, 2)))))
    other.start()
    assert await pool.run(graders.add, (1, 1)) == 2
    await asyncio.to_thread(other.join)
    assert found == [4]


async def test_a_server_that_is_killed_is_started_again(pool: GraderPool) -> None:
    await pool.run(graders.add, (1, 1))
    assert pool._server is not None
    os.kill(pool._server._process.pid, signal.SIGKILL)
    assert await pool.run(graders.add, (1, 1)) == 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 1, "it has no name in its module"),
        (graders.Graders().__init__, "it has no name in its module"),
    ],
)
async def test_what_cannot_be_found_by_name_is_refused(pool: GraderPool, function, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        await pool.run(function)


async def test_arguments_that_cannot_be_sent_are_refused(pool: GraderPool) -> None:
    with pytest.raises(ContractError, match=r"graders\.add: an argument cannot be pickled"):
        await pool.run(graders.add, (threading.Lock(),))


@pytest.mark.parametrize("limits", [{"timeout_s": 0}, {"memory_mb": -1}, {"timeout_s": math.nan}])
def test_limits_are_above_zero(limits: dict) -> None:
    with pytest.raises(ConfigError, match=f"grader limit {next(iter(limits))} must be > 0"):
        GraderLimits(**limits)


def test_a_pool_has_room() -> None:
    with pytest.raises(ConfigError, match="size must be >= 1"):
        GraderPool(size=0)


def test_the_default_pool_is_one() -> None:
    assert default_pool() is default_pool()


_OWNER = """
import asyncio, sys
from tests.unit.vime_agents.grading import graders
from vime_agents.grading import GraderPool
async def main():
    pool = GraderPool()
    call = asyncio.ensure_future(pool.run(graders.leave_a_child, (sys.argv[1],)))
    wait = asyncio.ensure_future(pool.run(graders.touch_and_wait, (sys.argv[2],)))
    await call
    print(pool._server._process.pid, flush=True)
    await wait
asyncio.run(main())
"""


async def test_nothing_outlives_an_owner_that_is_killed(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[4]
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / "left"), str(tmp_path / "waits")],
        stdout=subprocess.PIPE,
        cwd=root,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        server = int(await asyncio.to_thread(owner.stdout.readline))
        grader = await until_written(tmp_path / "waits")
        owner.kill()
    await until_gone(server, grader)


def test_the_main_script_is_refused_by_name() -> None:
    code = (
        "import asyncio\nfrom vime_agents.grading import GraderPool\n"
        "def grade(): return 1\nasyncio.run(GraderPool().run(grade))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "it is defined in the script that runs; move it into a module" in done.stderr
