"""What a new process sees of an import."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from vime_agents.checking import fresh

SCHEDSTAT = Path("/proc/thread-self/schedstat")


def compute(cpu_s: float) -> None:
    """Use the processor for so long."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="the kernel keeps no count of waiting")
def test_waiting_for_a_processor_that_others_have_is_told_from_sleep() -> None:
    before, started = fresh.waited_for_processor_s(), time.perf_counter()
    time.sleep(0.2)
    # A sleeper is not runnable. What it waits at its end can be no more than it overslept.
    overslept = time.perf_counter() - started - 0.2
    assert fresh.waited_for_processor_s() - before <= overslept + 0.001

    # Two processes that share one processor: whatever this one does not compute, it waits.
    whole = os.sched_getaffinity(0)
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{min(whole)}}})\nwhile True: pass"],
        os.environ,
    )
    waited: list[float] = []

    def share() -> None:
        os.sched_setaffinity(0, {min(whole)})
        before, started = fresh.waited_for_processor_s(), time.perf_counter()
        compute(0.3)
        waited.extend([fresh.waited_for_processor_s() - before, time.perf_counter() - started - 0.3])

    try:
        time.sleep(0.2)  # until the other computes
        thread = threading.Thread(target=share)
        thread.start()
        thread.join()
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    counted, missing = waited
    assert counted > 0.1
    assert counted == pytest.approx(missing, rel=0.2)


def test_an_import_takes_what_it_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeps_at_import.py").write_text(
        "import time\n\ntime.sleep(0.3)\n\n\nclass Env:\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = fresh._import("sleeps_at_import:Env")
    assert seen["seconds"] >= 0.29
