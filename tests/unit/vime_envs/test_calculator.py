from __future__ import annotations

import threading

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import vime_agents  # noqa: F401 - registers the ids
from vime_agents.errors import SandboxUnavailable
from vime_agents.messages import assistant, tool_call
from vime_envs.calculator import Calculator
from vime_sandboxes.local import LocalSandboxProvider

ENV_ID = "vime_agents/Calculator-v0"


@pytest.fixture
async def env():
    made = Calculator(sandbox_provider=LocalSandboxProvider())
    yield made
    await made.aclose()
    await made._provider.aclose()


def call(expression: str, name: str = "calculator"):
    return assistant("", [tool_call(name, {"expression": expression}, "c1")])


def test_gymnasium_finds_nothing_to_say() -> None:
    env = gymnasium.make(ENV_ID)
    check_env(env.unwrapped)  # a warning is an error in this test suite
    env.close()


def test_spec_survives_json() -> None:
    with gymnasium.make(ENV_ID) as env:
        assert env.spec is not None
        again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
        assert again.spec == env.spec
        assert again.reset(seed=5)[0] == env.reset(seed=5)[0]
        again.close()


def test_seeds_decide_the_task() -> None:
    with gymnasium.make(ENV_ID) as first, gymnasium.make(ENV_ID) as second:
        questions = [first.reset(seed=s)[0]["messages"][0]["content"] for s in range(10)]
        assert questions == [second.reset(seed=s)[0]["messages"][0]["content"] for s in range(10)]
        assert len(set(questions)) == 10


def test_splits_do_not_share_their_tasks() -> None:
    train = {Calculator(split="train").task_set()[i].inputs["expression"] for i in range(300)}
    test = {Calculator(split="test").task_set()[i].inputs["expression"] for i in range(300)}
    assert not train & test


async def test_gold_scores_one_by_using_the_sandbox(env: Calculator) -> None:
    for index in range(3):
        await env.areset(options={"task": index})
        first, last = env.gold()
        observation, reward, terminated, truncated, info = await env.astep(first)
        (answer,) = observation["messages"]
        assert (answer["role"], answer["content"]) == ("tool", str(env.task["answer"]))
        assert (reward, terminated, truncated) == (0.0, False, False)
        _, reward, terminated, _, info = await env.astep(last)
        assert (reward, terminated, info["stop"]) == (1.0, True, "done")
        assert env.counters == {"tool_calls": 1}


async def test_the_answer_is_the_arithmetic_of_the_question(env: Calculator) -> None:
    for index in range(50):
        await env.areset(options={"task": index})
        a, rest = env.task["expression"].split(" * ")
        b, c = rest.split(" + ")
        assert env.task["answer"] == int(a) * int(b) + int(c)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "   ",
        "I refuse.",
        "{question}",
        "The result is {answer}1",
        "-{answer}",
        "{answer}.5",
        "{answer} or 12",
        "\0\n" * 100,
        "🦆" * 50,
        "9" * 1_000_000,
        "1," * 500_000,
        "٣٤",
    ],
)
async def test_wrong_replies_score_zero(env: Calculator, reply: str) -> None:
    observation, _ = await env.areset(seed=1)
    question = observation["messages"][0]["content"]
    reply = reply.replace("{question}", question).replace("{answer}", str(env.task["answer"]))
    _, reward, terminated, _, info = await env.astep(reply)
    assert (reward, terminated) == (0.0, True)
    assert info["reward_result"].ok


@pytest.mark.parametrize("reply", ["{answer}", "It is {comma}.", "12 * 3, no: **{answer}**", "= {answer}\n"])
async def test_right_replies_score_one(env: Calculator, reply: str) -> None:
    await env.areset(seed=1)
    answer = env.task["answer"]
    _, reward, *_ = await env.astep(reply.replace("{answer}", str(answer)).replace("{comma}", f"{answer:,}"))
    assert reward == 1.0


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (call("__import__('os').system('touch /work/pwned')"), "only numbers"),
        (call("9**9**9"), "too large"),
        (call("7" * 1_000_000), "1000000 characters"),
        (call("1+1", name="Calculator"), "no tool 'Calculator'; there are: calculator"),
        (assistant("", [tool_call("calculator", '{"expression": "1+1', "c1")]), "not valid JSON"),
        (assistant("", [tool_call("calculator", '{"expr": "1+1"}', "c1")]), "expression: Field required"),
        (assistant("", [tool_call("calculator", "[1]", "c1")]), "bad arguments"),
    ],
)
async def test_hostile_calls_are_answered_and_counted(env: Calculator, action, message: str) -> None:
    await env.areset(seed=1)
    observation, reward, terminated, truncated, _ = await env.astep(action)
    (answer,) = observation["messages"]
    assert answer["content"].startswith("Error: ")
    assert message in answer["content"]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.counters == {"tool_calls": 1, "tool_errors": 1}


async def test_the_eighth_turn_is_the_last(env: Calculator) -> None:
    await env.areset(seed=1)
    for turn in range(1, 9):
        _, _, terminated, truncated, info = await env.astep(call("1+1"))
        assert (terminated, truncated) == (False, turn == 8)
    assert info["stop"] == "max_turns"


async def test_every_episode_has_its_own_sandbox_and_ends_it(env: Calculator) -> None:
    boxes = []
    for seed in (1, 2):
        await env.areset(seed=seed)
        await env.astep(call("1+1"))
        boxes.append(await env.sandbox())
    assert boxes[0].id != boxes[1].id
    await env.astep("done")
    assert [await b.alive() for b in boxes] == [False, False]


async def test_a_machine_without_sandboxes_is_an_error_and_not_a_reward() -> None:
    class Broken:
        name = "broken"

        async def create(self, spec, *, labels=None):
            raise SandboxUnavailable("not here")

        async def aclose(self) -> None: ...

    env = Calculator(sandbox_provider=Broken())
    await env.areset(seed=1)
    with pytest.raises(SandboxUnavailable):
        await env.astep(call("1+1"))
    await env.aclose()


def test_the_sync_face_leaves_no_thread_per_env() -> None:
    with gymnasium.make(ENV_ID) as env:
        env.reset(seed=1)
        env.step(call("2+2"))
    before = threading.active_count()
    for seed in range(3):
        with gymnasium.make(ENV_ID) as env:
            env.reset(seed=seed)
            env.step(call("2+2"))
    assert threading.active_count() <= before + 1
