"""Each game of the gallery is caught by the check that is meant for it, and by no other."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from vime_agents.checking import kit
from vime_agents.checking.catalog import CHECKS, GAME_CHECKS, open_session
from vime_agents.checking.finding import CheckResult
from vime_agents.checking.games.session import GameSession
from vime_agents.checking.scale import QUICK
from vime_agents.checking.supervise import run_checks
from vime_agents.errors import ConfigError, UnknownIdError

pytest.importorskip("pettingzoo")
HERE = str(Path(__file__).parent)
SCALE = replace(
    QUICK,
    num_tasks=3,
    num_listed_tasks=50,
    num_seeds=2,
    num_random_episodes=8,
    num_leak_episodes=16,
    huge_characters=50_000,
    settle_s=0.1,
)
PROCESSES = {"fresh-processes", "quiet-import"}

sys.path.insert(0, HERE)
import game_gallery  # noqa: E402

FINDS: dict[str, str | None] = {name: getattr(cls, "FINDS") for name, cls in game_gallery.GALLERY.items()}  # noqa: B009
LEAKS = {check_id for check_id in GAME_CHECKS if check_id.startswith("leak-")}
SLOW = {*LEAKS, "pettingzoo", "cancellation", "loop-blocking"}
"""Which play many episodes: only when they are to find something, or nothing is."""


@pytest.fixture(autouse=True)
def closes_what_leaks():
    yield
    game_gallery.left_open.close()


async def run(name: str) -> list[CheckResult]:
    session = open_session(f"game_gallery:{name}", scale=SCALE)
    left_out = PROCESSES if FINDS[name] in (None, *SLOW) else PROCESSES | SLOW
    ids = [check_id for check_id in kit.chosen_checks((), session.checks) if check_id not in left_out]
    return [await session.run(check_id) for check_id in ids]


@pytest.mark.parametrize("name", [name for name, check_id in FINDS.items() if check_id])
async def test_the_right_check_catches_it_and_no_other(name: str) -> None:
    results = await run(name)
    found = [finding for result in results for finding in result.findings]
    assert {finding.id for finding in found} == {FINDS[name]}, found
    assert all(finding.fix and finding.message for finding in found)


async def test_a_good_game_passes_everything() -> None:
    assert {(r.id, r.state, r.reason) for r in await run("Nim") if r.state != "passed"} == set()


def test_nearly_every_check_has_a_game_that_it_catches() -> None:
    caught = set(FINDS.values()) - {None, *LEAKS}
    # What these see is the same in an env of one agent, and has one in its gallery.
    elsewhere = {*PROCESSES, *LEAKS, "plays", "instances", "loop-blocking", "speed"}
    elsewhere |= {"task-ids", "task-json"}
    assert set(GAME_CHECKS) - elsewhere == caught
    assert all(GAME_CHECKS[name].promise == CHECKS[name].promise for name in elsewhere)


async def test_a_game_that_its_own_rules_cut_is_not_cut_by_max_turns_and_its_class_is_found_by_workers() -> (
    None
):
    session = open_session("vime_envs.games.classic:RockPaperScissors", scale=SCALE)
    states = {i: (await session.run(i)).state for i in kit.chosen_checks(["ends", "spec"], session.checks)}
    assert (states["ends"], states["spec"]) == ("passed", "passed"), states


async def test_as_many_whole_games_are_played_as_are_asked_for() -> None:
    session = open_session("game_gallery:Nim", scale=replace(SCALE, num_tasks=5, num_random_episodes=7))
    assert isinstance(session, GameSession)
    played = Counter(label.split()[1] for label, _ in await session.games())
    assert played == {"gold": 5, "wrong": 5, "garbage": 5, "random": 7}


async def test_random_games_are_among_those_that_must_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def legal(game: game_gallery.Nim, me: str) -> list[str]:
        game_gallery.left_open.enter_context(open(__file__))  # noqa: SIM115
        return ["1"]

    monkeypatch.setattr(game_gallery.Nim, "legal", legal)
    assert (await open_session("game_gallery:Nim", scale=SCALE).run("leak-files")).state == "found"


def test_a_session_is_of_the_kind_of_its_env() -> None:
    assert isinstance(open_session("KuhnPoker-v0"), GameSession)
    assert not isinstance(open_session("GuessNumber-v0"), GameSession)
    with pytest.raises(ConfigError, match="no AgentEnv and no MultiAgentEnv"):
        open_session("CartPole-v1")


async def test_a_check_of_envs_of_one_agent_is_unknown_to_a_game() -> None:
    with pytest.raises(UnknownIdError, match="tool-schemas"):
        await run_checks("KuhnPoker-v0", only=["tool-schemas"])


@pytest.mark.integration  # a process of its own for the checks, and two more
@pytest.mark.parametrize(
    "env_id",
    ["KuhnPoker-v0", "PrisonersDilemma-v0", "TicTacToe-v0", "Negotiation-v0", "TwentyQuestions-v0",
     "ProposerSolver-v0"],
)  # fmt: skip
async def test_every_ready_made_game_passes(env_id: str) -> None:
    report = await run_checks(env_id, scale=QUICK)
    assert report.ok, [*report.findings, *report.not_run]
    assert not report.findings
