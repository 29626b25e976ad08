"""Each env of the gallery is caught by the check that is meant for it."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vime_agents.checking import catalog, kit
from vime_agents.checking.finding import CheckResult
from vime_agents.checking.sandboxes import CountingSandboxes
from vime_agents.checking.scale import QUICK
from vime_agents.checking.supervise import run_checks
from vime_agents.errors import SandboxUnavailable

HERE = str(Path(__file__).parent)
SCALE = replace(
    QUICK,
    num_listed_tasks=50,
    num_seeds=3,
    num_random_episodes=60,
    num_leak_episodes=16,
    call_s=1.0,
    settle_s=0.1,
    tool_s=0.2,
)
PROCESSES = {"fresh-processes", "quiet-import"}

sys.path.insert(0, HERE)
import gallery  # noqa: E402 # pyright: ignore[reportMissingImports]

IN_PROCESS = [name for name, cls in gallery.GALLERY.items() if cls.FINDS not in ("crash", "hang")]
GOOD = [name for name, cls in gallery.GALLERY.items() if cls.FINDS is None]


@pytest.fixture(autouse=True)
def ends_what_leaks():
    """What the leaking envs left, but for the memory."""
    yield
    gallery.RELEASE.set()
    gallery.RELEASE.clear()
    gallery.end_leaked()


class Box:
    """A sandbox as far as it is counted."""

    async def alive(self) -> bool:
        return True


class BoxPool:
    """Lends boxes that nobody closes."""

    async def create(self, spec, *, labels=None, snapshot=None):
        return Box()

    async def aclose(self):
        pass


async def run(name: str, ids: list[str]) -> list[CheckResult]:
    session = kit.Session(f"gallery:{name}", scale=SCALE)
    if not getattr(session.cls, "REAL_SANDBOXES", False):
        session.sandboxes = CountingSandboxes(BoxPool())
    try:
        return [await session.run(check_id) for check_id in ids]
    finally:
        await session.sandboxes.aclose()


def findings(results: list[CheckResult]) -> set[str]:
    return {finding.id for result in results for finding in result.findings}


def test_the_gallery_is_large_and_has_an_env_for_nearly_every_check():
    caught = {cls.FINDS for cls in gallery.GALLERY.values()} - {None}
    assert len(gallery.GALLERY) - len(GOOD) >= 25
    # `Loud` is a module of its own; an env that is slow in every episode would make a slow test.
    assert set(catalog.CHECKS) - caught == {"quiet-import", "speed"}


@pytest.mark.parametrize(
    "name", [n for n in IN_PROCESS if gallery.GALLERY[n].FINDS not in (None, *PROCESSES)]
)
async def test_the_right_check_catches_it(name: str) -> None:
    expected = gallery.GALLERY[name].FINDS
    results = await run(name, kit.chosen_checks([expected]))
    assert findings(results) == {expected}, results
    assert all(finding.fix and finding.message for result in results for finding in result.findings)


async def test_a_good_env_passes_everything() -> None:
    results = await run("Sum", [name for name in kit.chosen_checks() if name not in PROCESSES])
    skipped = ("skipped", "the env declares no `sandbox_spec`", ())
    others = {r.id: (r.state, r.reason, r.findings) for r in results if r.state != "passed"}
    ids = ("leak-sandboxes", "sandbox-verdict", "sandbox-walls")
    assert others == dict.fromkeys(ids, skipped)


async def test_tags_that_the_prompt_shows_are_no_fault() -> None:
    results = await run("TagsThatThePromptShows", kit.chosen_checks(["answer-form"]))
    assert {r.state for r in results} == {"passed"}


async def test_without_gold_there_is_a_warning_and_nothing_is_left_untried() -> None:
    results = await run("NoGold", [name for name in kit.chosen_checks() if name not in PROCESSES])
    assert {f.severity for r in results for f in r.findings} == {"warning"}
    assert not [r for r in results if r.state == "not run"]


async def test_without_a_sandbox_what_needs_one_is_not_run_and_no_fault_of_the_env() -> None:
    class NoBackend:
        name = "none"

        async def create(self, spec, *, labels=None, snapshot=None):
            raise SandboxUnavailable("no backend works here")

    session = kit.Session("Calculator-v0", scale=SCALE)
    session.sandboxes = NoBackend()
    for check_id in ("plays", "close", "gold", "same-seed", "tool-arguments"):
        await session.run(check_id)
    states = {result.id: result.state for result in session.results.values()}
    assert states == {
        "plays": "passed",
        "close": "passed",
        "gold": "not run",
        "same-seed": "not run",
        "tool-arguments": "not run",
    }
    assert session.results["gold"].reason == "no sandbox: no backend works here"


@pytest.mark.integration
@pytest.mark.parametrize("name", IN_PROCESS)
async def test_no_other_check_catches_it(name: str) -> None:
    expected = gallery.GALLERY[name].FINDS
    ids = [i for i in kit.chosen_checks() if i not in PROCESSES or i == expected]
    assert findings(await run(name, ids)) == {expected} - {None}


@pytest.mark.integration
async def test_a_module_that_prints_and_configures_logging_is_caught(monkeypatch, capsys) -> None:
    monkeypatch.delitem(sys.modules, "loud", raising=False)
    level = logging.getLogger().level
    try:
        report = await run_checks("loud:Loud", scale=QUICK, only=["quiet-import"])
    finally:
        logging.getLogger().setLevel(level)
    messages = [f.message for f in report.findings if f.id == "quiet-import"]
    assert messages == ["it prints 'loading tables\\n'", "it changes the root logger"]
    assert capsys.readouterr().out == ""


@pytest.mark.integration
@pytest.mark.parametrize("name", ["Exits", "BlocksForGood"])
async def test_an_env_that_ends_or_blocks_its_process_is_caught_and_the_other_checks_go_on(name: str) -> None:
    report = await run_checks(f"gallery:{name}", scale=QUICK, only=["hostile-text", "gold-wins"])
    assert {f.id for f in report.findings} == {gallery.GALLERY[name].FINDS}
    states = {result.id: result.state for result in report.results}
    assert states["hostile-text"] == "not run"
    assert states["gold-wins"] == "passed"
    assert not report.ok


@pytest.mark.integration
@pytest.mark.parametrize("env_id", ["Calculator-v0", "KeyLookup-v0"])
async def test_ready_made_envs_pass(env_id: str) -> None:
    report = await run_checks(env_id, scale=QUICK)
    assert report.ok, [r for r in report.results if r.state != "passed"]
    assert not report.findings
