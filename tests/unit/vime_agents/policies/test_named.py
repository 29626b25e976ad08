"""Who a text names."""

from __future__ import annotations

import pytest

from vime_agents.errors import ConfigError
from vime_agents.policies.admission import Admissions
from vime_agents.policies.named import agent_policies, named_agents, named_policy
from vime_agents.policies.openai_chat import OpenAIChatPolicy
from vime_agents.policies.pool import PolicyPool
from vime_agents.policies.scripted import ScriptedPolicy
from vime_agents.policy import Policy
from vime_agents.rollout.multi_agent import is_frozen


def test_agents_and_roles_have_their_models() -> None:
    assert named_agents("") == {}
    assert named_agents("X=gold, solver = http://host:1/v1#a=b") == {
        "X": "gold",
        "solver": "http://host:1/v1#a=b",
    }


@pytest.mark.parametrize("text", ["X", "X=", "=gold", "X=gold,X=wrong"])
def test_what_names_nobody_or_somebody_twice_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--agents"):
        named_agents(text)


async def test_named_policies_are_frozen() -> None:
    policies = agent_policies("X=scripted:random,O=http://127.0.0.1:9/v1#model")
    assert [policy.name for policy in policies.values()] == ["scripted:random", "model"]
    for policy in policies.values():
        assert isinstance(policy, Policy)
        assert is_frozen(policy)
        await policy.aclose()


def test_models_of_one_server_have_one_admission_where_there_is_any() -> None:
    admissions = Admissions(7)
    urls = ("http://host:1/v1", "http://host:1/v1/", "http://host:2/v1")
    found = [named_policy("--model", f"{url}#{n}", admissions=admissions) for n, url in enumerate(urls)]
    a, b, c = (policy.admission for policy in found if isinstance(policy, OpenAIChatPolicy))
    assert a is not None
    assert a is b
    assert a is not c
    assert a.ceiling == 7
    alone = named_policy("--model", "http://host:1/v1#m")
    assert isinstance(alone, OpenAIChatPolicy)
    assert alone.admission is None


async def test_a_pool_has_several_members_under_names_of_their_own() -> None:
    servers = "http://127.0.0.1:9/v1#model|http://127.0.0.1:8/v1#model"
    players = agent_policies(f"X=random | gold,O={servers}", seed=3)
    x, o = players["X"], players["O"]
    assert isinstance(x, PolicyPool)
    assert isinstance(o, PolicyPool)
    assert (x.name, x.seed, o.name, o.seed) == ("scripted:random|scripted:gold", "3/X", servers, "3/O")
    for pool in (x, o):
        assert all(is_frozen(member) for member in pool.members)
        await pool.aclose()


async def test_a_policy_that_is_there_already_plays_under_its_name() -> None:
    there = ScriptedPolicy("wrong")
    players = agent_policies("X=mine,O=mine|random", present={"mine": there})
    pool = players["O"]
    assert players["X"] is there
    assert isinstance(pool, PolicyPool)
    assert pool.members[0] is there
    with pytest.raises(ConfigError, match="must be mine, scripted:gold"):
        agent_policies("X=yours", present={"mine": there})


@pytest.mark.parametrize("model", ["scripted:best", "http://127.0.0.1:9/v1", "vllm:folder", ""])
def test_what_names_no_model_is_refused_with_what_can_be_said(model: str) -> None:
    with pytest.raises(ConfigError, match=r"--agents: .*(#NAME)"):
        named_policy("--agents", model)


@pytest.mark.parametrize(
    "url", ["http://HOST:PORT/v1", "http://localhost:99999/v1", "http://[::1/v1", "http:///v1"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--model: '.*(is no URL|names no host)"):
        named_policy("--model", f"{url}#m", admissions=Admissions(4))
