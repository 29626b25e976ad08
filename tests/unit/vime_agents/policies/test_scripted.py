"""Scripts: gold, wrong, garbage."""

import gc

import pytest

from vime_agents.errors import ConfigError, ContractError
from vime_agents.messages import check_message
from vime_agents.policies.scripted import ScriptedPolicy, garbage
from vime_agents.policy import Conversation, Policy, Sampling


class Env:
    """What the policy needs of an env."""

    def __init__(self, gold):
        self.gold = gold

    @property
    def unwrapped(self):
        return self


async def play(policy, env, turns, seed=0):
    conversation = Conversation(agent="agent", episode_id="e")
    policy.begin(conversation, env)
    replies = []
    for _ in range(turns):
        reply = (await policy.act(conversation, sampling=Sampling(seed=seed))).message
        conversation.replied(reply)
        replies.append(reply)
    return replies


async def agold():
    return ["first", {"role": "assistant", "content": "second"}]


@pytest.mark.parametrize("gold", [agold, lambda: ["first", {"role": "assistant", "content": "second"}]])
async def test_gold_replies_are_played_in_order_whether_the_hook_is_async_or_not(gold):
    replies = await play(ScriptedPolicy("gold"), Env(gold), 2)
    assert [r["content"] for r in replies] == ["first", "second"]


async def test_a_single_gold_text_is_one_reply():
    assert await play(ScriptedPolicy("gold"), Env(lambda: "42"), 1) == [
        {"role": "assistant", "content": "42"}
    ]


async def test_an_episode_longer_than_its_gold_is_the_envs_mistake():
    with pytest.raises(ContractError, match=r"Env\.gold\(\) has 1 replies"):
        await play(ScriptedPolicy("gold"), Env(lambda: "42"), 2)


async def test_an_env_without_gold_is_named():
    with pytest.raises(ContractError, match="needs an environment with `gold`"):
        await play(ScriptedPolicy("gold"), Env(None), 1)


async def test_episodes_in_flight_do_not_see_each_others_env():
    policy = ScriptedPolicy("gold")
    first, second = (Conversation(agent="agent", episode_id=name) for name in "ab")
    envs = Env(lambda: "1"), Env(lambda: "2")
    policy.begin(first, envs[0])
    policy.begin(second, envs[1])
    answers = [(await policy.act(c, sampling=Sampling())).message["content"] for c in (first, second)]
    assert answers == ["1", "2"]


def test_a_finished_env_is_not_kept_alive():
    policy = ScriptedPolicy("gold")
    policy.begin(Conversation(agent="agent", episode_id="e"), Env(lambda: "1"))
    gc.collect()
    assert len(policy._envs) == 0


async def test_garbage_is_a_function_of_seed_and_turn_and_always_a_message():
    policy = ScriptedPolicy("garbage")
    once, again = await play(policy, Env(None), 40, seed=3), await play(policy, Env(None), 40, seed=3)
    other = await play(policy, Env(None), 40, seed=4)
    assert once == again != other
    assert all(check_message(m)["role"] == "assistant" for m in once)


def test_garbage_has_broken_calls_unknown_tools_noise_and_markup():
    messages = [garbage(str(seed)) for seed in range(200)]
    names = {c["function"]["name"] for m in messages for c in m.get("tool_calls", [])}
    arguments = {c["function"]["arguments"] for m in messages for c in m.get("tool_calls", [])}
    assert "no_such_tool" in names
    assert '{"x": ' in arguments
    assert any("<tool_call>" in m["content"] for m in messages)
    assert any("\x00" in m["content"] for m in messages)


async def test_wrong_is_one_well_formed_useless_reply():
    first, second = await play(ScriptedPolicy("wrong"), Env(None), 2)
    assert first == second == {"role": "assistant", "content": "I do not know."}


def test_it_is_a_policy_and_only_knows_its_scripts():
    assert isinstance(ScriptedPolicy("gold"), Policy)
    with pytest.raises(ConfigError, match="gold, wrong, garbage, random, got 'silver'"):
        ScriptedPolicy("silver")
