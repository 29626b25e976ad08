"""Evaluations whose episodes share a pool of real local sandboxes."""

import math
from pathlib import Path

import pytest

import vime_agents as vime
from vime_agents import messages as msg
from vime_agents.evaluation.evaluate import evaluate
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.rollout.sandboxes import merged_metrics, sandbox_pool
from vime_sandboxes.ledger import OPEN, Ledger


class Marks(vime.ToolEnv):
    """Leaves a mark in the sandbox; scores how clean it was before."""

    sandbox_spec = vime.SandboxSpec(memory_mb=64)
    num_tasks = 6

    def make_task(self, rng):
        return {}

    def prompt(self):
        return "Leave a mark."

    @vime.tool
    async def mark(self) -> str:
        """Leave a mark."""
        box = await self.sandbox()
        self.found = (await box.exec(["ls", "-A", "/work", "/tmp", "/dev/shm"])).text
        await box.exec(["touch", "/work/mark", "/tmp/mark", "/dev/shm/mark"])
        return "done"

    def score(self, text):
        return float("mark" not in self.found)

    def gold(self):
        return [msg.assistant("", [msg.tool_call("mark", {}, "1")]), "ok"]


class Broken(Marks):
    """Its sandbox cannot be made."""

    sandbox_spec = vime.SandboxSpec(setup=(("false",),))


class Plain(Marks):
    """Has no sandbox."""

    sandbox_spec = None


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIME_AGENTS_STATE", str(tmp_path))


async def play(name: str = "Marks", **settings):
    return await evaluate(
        f"{__name__}:{name}", ScriptedPolicy("gold"), num_tasks=6, concurrency=2, max_retries=1, **settings
    )


async def test_episodes_share_a_pool_and_never_see_each_other(tmp_path: Path) -> None:
    report = await play(max_sandboxes=2)
    assert (report.mean, report.n_scored, report.errors) == (1.0, 6, {})
    assert report.metrics["sandbox_boots"] >= 6
    assert 0 < report.metrics["sandbox_boot_p50_s"] <= report.metrics["sandbox_boot_p95_s"]
    assert report.metrics["sandbox_failures"] == 0
    assert list((tmp_path / "sandboxes").glob("*")) == []


async def test_none_is_made_before_it_is_asked_for_when_none_is_kept_ready() -> None:
    report = await play(sandbox_pool_size=0)
    assert (report.mean, report.n_scored) == (1.0, 6)
    assert (report.metrics["sandbox_boots"], report.metrics["sandbox_warm_share"]) == (6, 0)


async def test_what_an_env_makes_by_itself_is_in_the_ledger_too(tmp_path: Path) -> None:
    env = Marks()
    await env.areset(seed=0)
    box = await env.sandbox()
    (entry,) = Ledger().read()[0]
    assert (entry.sandbox_id, entry.stage) == (box.id, OPEN)
    await env.aclose()
    assert list((tmp_path / "sandboxes").iterdir()) == []


async def test_a_failed_boot_is_typed_and_tried_again() -> None:
    report = await play("Broken")
    assert report.errors == {"sandbox": 6}
    assert "SandboxNotReady" in report.error_examples["sandbox"]
    assert report.metrics["sandbox_failures"] >= 12  # two attempts each
    assert math.isnan(report.mean)


def test_there_is_a_pool_only_where_it_has_something_to_do() -> None:
    assert sandbox_pool(f"{__name__}:Plain", size=4) is None
    assert sandbox_pool(f"{__name__}:Marks", size=0) is not None


def test_metrics_of_several_pools_are_those_of_one() -> None:
    first = {"sandbox_boots": 3.0, "sandbox_boot_p95_s": 0.2, "sandbox_warm_share": 0.5}
    second = {"sandbox_boots": 4.0, "sandbox_boot_p95_s": 0.1, "sandbox_failures": 1.0}
    assert merged_metrics([first, second, {}]) == {
        "sandbox_boots": 7.0,
        "sandbox_boot_p95_s": 0.2,
        "sandbox_warm_share": 0.5,
        "sandbox_failures": 1.0,
    }
