"""How checks stand on each other, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from vime_agents.checking import catalog, kit
from vime_agents.checking.kit import CannotRun, Check, DoesNotApply, Session, chosen_checks
from vime_agents.errors import ConfigError, UnknownIdError


@pytest.fixture
def session(monkeypatch):
    """Checks that are added to it are the only ones."""
    monkeypatch.setattr(kit, "CHECKS", {})
    return Session("Calculator-v0")


def add(check_id, run, *, needs=(), explained_by=()):
    kit.CHECKS[check_id] = Check(
        id=check_id,
        family="tasks",
        promise="Holds.",
        run=run,
        fix="mend it",
        needs=needs,
        explained_by=explained_by,
    )


async def passes(session):
    pass


async def finds(session):
    session.find("a fault", where="env.py:3 in score")


async def test_a_fault_is_reported_with_the_checks_id_and_its_usual_advice(session):
    add("a", finds)
    result = await session.run("a")
    (finding,) = result.findings
    assert (result.state, finding.id, finding.severity) == ("found", "a", "error")
    assert (finding.message, finding.where, finding.fix) == ("a fault", "env.py:3 in score", "mend it")


async def test_a_check_whose_needs_are_not_met_is_not_run_and_says_so(session):
    add("a", finds)
    add("b", passes, needs=("a",))
    await session.run("a")
    result = await session.run("b")
    assert (result.state, result.reason) == ("not run", "it needs a to pass")


async def test_what_another_check_explains_is_no_finding_but_a_pass_stays_one(session):
    add("a", finds)
    add("b", finds, explained_by=("a",))
    add("c", passes, explained_by=("a",))
    states = {name: await session.run(name) for name in ("a", "b", "c")}
    assert states["b"].state == "not run"
    assert states["b"].reason == "what it saw may come from a: a fault"
    assert not states["b"].findings
    assert states["c"].state == "passed"


async def test_a_warning_holds_up_no_other_check(session):
    async def warns(session):
        session.find("a small fault", severity="warning")

    add("a", warns)
    add("b", passes, needs=("a",))
    add("c", finds, explained_by=("a",))
    assert [(await session.run(name)).state for name in ("a", "b", "c")] == ["found", "passed", "found"]


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (DoesNotApply("no tools"), "skipped", "no tools"),
        (CannotRun("no backend"), "not run", "no backend"),
        (KeyError("x"), "not run", "the check itself failed: KeyError: 'x'"),
    ],
)
async def test_a_check_that_breaks_is_never_a_pass(session, error, state, reason):
    async def breaks(session):
        raise error

    add("a", breaks)
    result = await session.run("a")
    assert (result.state, result.reason) == (state, reason)


def test_a_chosen_check_brings_what_it_stands_on_before_it():
    order = chosen_checks(["hedging-pays"])
    assert order[-1] == "hedging-pays"
    assert order.index("plays") < order.index("gold") < order.index("gold-wins") < order.index("garbage-pays")
    assert "leak-memory" not in order


def test_all_checks_have_an_order():
    order = chosen_checks()
    assert sorted(order) == sorted(catalog.CHECKS)
    place = {name: index for index, name in enumerate(order)}
    for check in catalog.CHECKS.values():
        assert all(place[other] < place[check.id] for other in (*check.needs, *check.explained_by))
        assert check.promise.endswith(".")
        assert check.family in kit.FAMILIES


def test_an_unknown_check_suggests_the_nearest():
    with pytest.raises(UnknownIdError, match="'same-seed'"):
        chosen_checks(["same-sed"])


def test_a_class_that_is_no_agent_env_is_refused():
    with pytest.raises(ConfigError, match="is no AgentEnv"):
        Session("gymnasium:Env")


async def test_a_call_that_does_not_come_back_is_given_up_at_its_line(session):
    class Author:
        def line_now(self, tasks):
            return "env.py:7 in prompt"

    with pytest.raises(kit.Hung, match=r"reset did not end within 0\.01 s") as hung:
        await kit.bounded(asyncio.sleep(60), "reset", 0.01, Author())
    assert hung.value.where == "env.py:7 in prompt"
