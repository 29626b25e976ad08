from __future__ import annotations

import asyncio
import copy
import os
import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from vime_agents.env import AgentEnv, ToolEnv
from vime_agents.errors import (
    ConfigError,
    ContractError,
    EnvError,
    EnvFault,
    GraderError,
    SandboxDead,
    SandboxUnavailable,
    ToolError,
)
from vime_agents.messages import assistant, system, tool_call, user
from vime_agents.sandbox import SandboxSpec
from vime_agents.task import Task
from vime_agents.threads import run_on_background_loop
from vime_agents.tools import Toolset, tool


class Echo(AgentEnv):
    """The agent must repeat a number."""

    num_tasks = 50

    def make_task(self, rng):
        return {"n": int(rng.integers(1000))}

    def prompt(self):
        return f"Repeat {self.task['n']}"

    def score(self, text):
        return text == str(self.task["n"])


class Chatty(Echo):
    """Goes on until the agent says stop."""

    max_turns = 3

    async def respond(self, message):
        return None if message["content"] == "stop" else [user(f"you said {message['content']}")]


class Box:
    """A sandbox that only knows whether it is open."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class Boxes:
    """A provider that takes its time."""

    name = "boxes"

    def __init__(self, error: Exception | None = None) -> None:
        self.made: list[Box] = []
        self.error = error
        self.closed = 0

    async def create(self, spec, *, labels=None):
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        self.made.append(Box())
        return self.made[-1]

    async def aclose(self) -> None:
        self.closed += 1


class Tools(ToolEnv):
    """One tool of each kind."""

    sandbox_spec = SandboxSpec()
    tool_timeout_s = 0.2

    def make_task(self, rng):
        return {}

    def prompt(self):
        return "go"

    def score(self, text):
        return 1.0

    @tool
    async def box(self) -> str:
        """Open the sandbox."""
        await self.sandbox()
        return "open"

    @tool
    def add(self, a: int, b: int = 1) -> int:
        """Add in a thread.

        Args:
            a: one.
            b: the other.
        """
        assert threading.current_thread().name.startswith("vime-hook")
        return a + b

    @tool
    async def fail(self, how: str) -> str:
        """Raise.

        Args:
            how: which error.
        """
        raise {
            "tool": ToolError("try again"),
            "bug": KeyError("oops"),
            "own timeout": TimeoutError("upstream"),
            "fault": EnvFault("disk full"),
            "sandbox": SandboxDead("gone"),
        }[how]

    @tool
    async def hang(self) -> str:
        """Never answer."""
        await asyncio.sleep(600)
        return ""


def calls(*pairs):
    return assistant("", [tool_call(name, args, str(i)) for i, (name, args) in enumerate(pairs)])


# ------------------------------------------------------------------------------------ gymnasium's rules


@pytest.mark.parametrize("env", [Echo(), Chatty()])
def test_gymnasium_finds_nothing_to_say(env: AgentEnv) -> None:
    env.spec = gymnasium.envs.registration.EnvSpec("Echo-v0", entry_point=type(env))
    check_env(env)
    env.close()


def test_same_seed_same_task_and_the_global_generators_are_left_alone() -> None:
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    env = Echo()
    first = [env.reset(seed=s) for s in (1, 2, 3, 1)]
    assert first[0] == first[3]
    assert len({o["messages"][0]["content"] for o, _ in first}) == 3
    assert (np.random.get_state()[1] == before).all()


def test_sync_and_async_faces_agree() -> None:
    env = Echo()
    answer = env.reset(seed=7)
    again = asyncio.run(Echo().areset(seed=7))
    assert answer == again
    env.close()


# --------------------------------------------------------------------------------------------- tasks


async def test_a_task_is_pinned_by_index_id_or_value() -> None:
    env = Echo()
    wanted = env.task_set()[4]
    for pin in (4, np.int64(4), wanted.id, wanted):
        _, info = await env.areset(options={"task": pin})
        assert (info["task_id"], env.task) == (wanted.id, wanted.inputs)
    await env.areset(options={"task": Task(id="mine", inputs={"n": 5})})
    assert (await env.astep("5"))[1] == 1.0


@pytest.mark.parametrize(
    ("pin", "message"), [(50, r"outside 0\.\.49"), (-1, "outside"), ("x-1", "no task 'x-1'")]
)
async def test_a_task_that_is_not_there_is_refused(pin, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await Echo().areset(options={"task": pin})


async def test_rows_are_tasks_too() -> None:
    class Rows(Echo):
        def tasks(self):
            return [{"n": 1}, {"n": 2, "id": "two"}]

    env = Rows()
    assert len(env.task_set()) == 2
    await env.areset(options={"task": "two"})
    assert env.task["n"] == 2


# ------------------------------------------------------------------------------------------ episodes


async def test_observations_hold_only_what_is_new() -> None:
    env = Chatty()
    observation, info = await env.areset(seed=0)
    assert [m["role"] for m in observation["messages"]] == ["user"]
    assert "stop" not in info
    observation, reward, terminated, truncated, _ = await env.astep("a")
    assert observation == {"messages": (user("you said a"),)}
    assert (reward, terminated, truncated) == (0.0, False, False)
    observation, _, terminated, truncated, info = await env.astep("stop")
    assert (observation, terminated, truncated) == ({"messages": ()}, True, False)
    assert info["stop"] == "done"
    assert [m["role"] for m in env.messages] == ["user", "assistant", "user", "assistant"]


async def test_the_turn_limit_is_exact() -> None:
    env = Chatty()
    await env.areset(seed=0)
    ends = [(await env.astep("a"))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    with pytest.raises(ContractError, match="after the episode ended"):
        await env.astep("a")


async def test_nothing_that_is_handed_out_or_in_is_shared() -> None:
    env = Chatty()
    observation, _ = await env.areset(seed=0)
    action = calls(("x", {}))
    answer = (await env.astep(action))[0]
    kept = copy.deepcopy(env.messages)
    observation["messages"][0]["content"] = "changed"
    answer["messages"][0]["content"] = "changed"
    action["tool_calls"][0]["function"]["name"] = "changed"
    assert env.messages == kept


@pytest.mark.parametrize("action", [None, 3, user("hi"), {"role": "assistant"}, b"text"])
async def test_only_replies_are_actions(action) -> None:
    env = Echo()
    await env.areset(seed=0)
    with pytest.raises(ContractError, match="an action is"):
        await env.astep(action)
    assert (await env.astep(str(env.task["n"])))[1] == 1.0  # and nothing was lost


async def test_a_step_before_reset_is_refused() -> None:
    with pytest.raises(ContractError, match="without reset"):
        await Echo().astep("1")


async def test_hooks_may_be_async_decorated_or_plain() -> None:
    def decorated(function):
        return lambda *args: function(*args)

    class Mixed(Echo):
        async def prompt(self):
            return [system("be brief"), user("hi")]

        @decorated
        async def score(self, text):
            return 0.5

    env = Mixed()
    observation, _ = await env.areset(seed=0)
    assert [m["role"] for m in observation["messages"]] == ["system", "user"]
    assert (await env.astep("x"))[1] == 0.5


async def test_plain_hooks_run_at_once_and_off_the_loop() -> None:
    meeting = threading.Barrier(5)

    class Waits(Echo):
        def prompt(self):
            meeting.wait(30)  # passes only when five hooks are here together
            return "hi"

    await asyncio.gather(*(Waits().areset(seed=s) for s in range(5)))
    assert not meeting.broken


@pytest.mark.parametrize(
    ("hook", "value", "error"),
    [
        ("prompt", lambda self: 1 / 0, EnvError),
        ("prompt", lambda self: None, ContractError),
        ("prompt", lambda self: [{"role": "user"}], ContractError),
        ("setup", lambda self: 1 / 0, EnvError),
        ("score", lambda self, text: 1 / 0, GraderError),
        ("score", lambda self, text: 1.5, GraderError),
        ("score", lambda self, text: float("nan"), GraderError),
        ("score", lambda self, text: None, GraderError),
        ("teardown", lambda self: 1 / 0, EnvError),
    ],
)
async def test_an_authors_mistake_is_named_after_its_boundary(hook: str, value, error: type) -> None:
    env = type("Broken", (Echo,), {hook: value})()

    async def play() -> None:
        await env.areset(seed=0)
        await env.astep("x")

    with pytest.raises(error):
        await play()


async def test_a_failed_episode_is_over_and_cleaned_up() -> None:
    class Broken(Tools):
        torn = 0

        def score(self, text):
            raise RuntimeError("no")

        async def teardown(self):
            self.torn += 1

    boxes = Boxes()
    env = Broken(sandbox_provider=boxes)
    await env.areset(seed=0)
    await env.astep(calls(("box", {})))
    with pytest.raises(GraderError, match=r"Broken\.score: RuntimeError\('no'\)"):
        await env.astep("done")
    assert (env.torn, boxes.made[0].closed) == (1, 1)
    with pytest.raises(ContractError, match="after the episode ended"):
        await env.astep("done")


async def test_info_holds_the_turns_limits_only_where_the_env_sets_them() -> None:
    class Limited(Chatty):
        def stop_strings(self):
            return ["\n"] if self.turn == 1 else []

        def max_tokens(self):
            return 0 if self.turn == 2 else None

    env = Limited()
    infos = [(await env.areset(options={"task": 3}))[1], (await env.astep("a"))[4], (await env.astep("b"))[4]]
    assert infos == [{"task_id": infos[0]["task_id"]}, {"stop_strings": ("\n",)}, {"max_tokens": 0}]


async def test_an_episode_that_is_cut_short_can_be_scored_once() -> None:
    env = Chatty()
    await env.areset(seed=0)
    await env.astep("x")
    assert (await env.score_partial()).value == 0.0
    with pytest.raises(ContractError, match="without an episode"):
        await env.score_partial()


# --------------------------------------------------------------------------------------------- tools


async def test_all_calls_of_a_message_are_answered_in_order() -> None:
    env = Tools()
    await env.areset(seed=0)
    observation, *_ = await env.astep(calls(("add", {"a": 1}), ("add", {"a": 2, "b": 5}), ("nope", {})))
    assert [m["content"] for m in observation["messages"]] == [
        "2",
        "7",
        "Error: no tool 'nope'; there are: box, add, fail, hang",
    ]
    assert [m["tool_call_id"] for m in observation["messages"]] == ["0", "1", "2"]
    assert env.counters == {"tool_calls": 3, "tool_errors": 1}


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("fail", {"how": "tool"}, "Error: try again"),
        ("fail", {"how": "bug"}, "Error: KeyError: 'oops'"),
        ("fail", {"how": "own timeout"}, "Error: TimeoutError('upstream')"),
        ("hang", {}, "Error: hang took longer than 0.2 s"),
        ("add", {"a": "x"}, "Error: bad arguments for add: a: Input should be a valid integer"),
        ("add", '{"a": 1', "Error: arguments of add are not valid JSON"),
        ("add", '{"a": ' + "1" * 5000 + "}", "Error: arguments of add are not valid JSON"),
        ("add", "[" * 100_000, "Error: arguments of add are not valid JSON"),
    ],
)
async def test_a_tools_failure_is_an_answer_and_is_counted(name: str, arguments, answer: str) -> None:
    env = Tools()
    await env.areset(seed=0)
    observation, _, terminated, truncated, _ = await env.astep(calls((name, arguments)))
    assert observation["messages"][0]["content"].startswith(answer)
    assert (terminated, truncated, env.counters["tool_errors"]) == (False, False, 1)


@pytest.mark.parametrize(("how", "error"), [("fault", EnvFault), ("sandbox", SandboxDead)])
async def test_infrastructure_ends_the_episode_and_the_other_calls(how: str, error: type) -> None:
    env = Tools()
    env.tool_timeout_s = 600  # type: ignore[misc]
    await env.areset(seed=0)
    before = asyncio.all_tasks()
    with pytest.raises(error):
        await env.astep(calls(("hang", {}), ("fail", {"how": how})))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_repaired_arguments_are_said_and_counted() -> None:
    env = Tools()
    await env.areset(seed=0)
    observation, *_ = await env.astep(calls(("add", "{'a': 1, 'b': 2,}"), ("add", '{"a": 1}"'), ("add", "{")))
    note = "[The arguments were not valid JSON and were repaired.]\n"
    answers = [m["content"] for m in observation["messages"]]
    assert answers[:2] == [f"{note}3", f"{note}2"]
    assert answers[2].startswith("Error: arguments of add are not valid JSON")
    assert env.counters == {"tool_calls": 3, "tool_repairs": 2, "tool_errors": 1}


async def test_a_long_answer_is_cut_and_says_so() -> None:
    class Loud(Tools):
        max_tool_output = 10

        @tool
        def shout(self, error: bool) -> str:
            """Be loud.

            Args:
                error: whether to fail.
            """
            if error:
                raise ToolError("x" * 100)
            return "é" * 100

    env = Loud()
    await env.areset(seed=0)
    observation, *_ = await env.astep(calls(("shout", {"error": False}), ("shout", {"error": True})))
    assert [m["content"] for m in observation["messages"]] == [
        "ééééé\n[... 90 of 100 characters were cut ...]\nééééé",
        "Error\n[... 97 of 107 characters were cut ...]\nxxxxx",
    ]
    assert env.counters["tool_outputs_cut"] == 2


async def test_a_tool_may_end_the_episode() -> None:
    class Submits(Tools):
        def score(self, text):
            return float(text == "42")

        @tool
        def submit(self, answer: str) -> str:
            """Submit.

            Args:
                answer: the answer.
            """
            self.finish(answer)
            return "Submitted."

    env = Submits()
    for answer, reward in (("42", 1.0), ("41", 0.0)):  # the second episode does not know of the first
        await env.areset(seed=0)
        action = calls(("submit", {"answer": answer}), ("add", {"a": 1}))
        observation, scored, terminated, truncated, info = await env.astep(action)
        assert [m["content"] for m in observation["messages"]] == ["Submitted.", "2"]
        assert (scored, terminated, truncated, info["stop"]) == (reward, True, False, "done")


# ------------------------------------------------------------------------------------------ toolsets


@tool
def shrug() -> str:
    """Shrug."""
    return "no idea"


class Counter(Toolset):
    """Counts within one episode."""

    log: list[str]

    async def setup(self) -> None:
        self.value = 0
        self.host.log.append("setup")

    def close(self) -> None:
        self.host.log.append("close")
        if self.host.breaks:
            raise OSError("broken")

    @tool
    def increment(self) -> int:
        """Count."""
        self.value += 1
        self.host.count("increments")
        return self.value


class Late(Toolset):
    """Learns in setup which tools it has."""

    tools = {}  # noqa: RUF012

    async def setup(self) -> None:
        self.tools = {"late_shrug": shrug}

    async def close(self) -> None:
        self.host.log.append("late close")


class Counting(Tools):
    toolsets = (Counter, shrug, Late)

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.log: list[str] = []
        self.breaks = False

    def setup(self):
        self.log.append("env setup")

    def teardown(self):
        self.log.append("env teardown")


async def test_a_toolset_lives_for_one_episode() -> None:
    env = Counting()
    known = ["box", "add", "fail", "hang", "increment", "shrug"]
    assert [s["function"]["name"] for s in env.tool_schemas] == known
    for _ in range(2):
        await env.areset(seed=0)
        assert list(env.tools) == [*known, "late_shrug"]
        action = calls(("increment", {}), ("increment", {}), ("shrug", {}), ("late_shrug", {}))
        observation, *_ = await env.astep(action)
        assert sorted(m["content"] for m in observation["messages"]) == ["1", "2", "no idea", "no idea"]
        assert env.counters["increments"] == 2
        await env.astep("done")
        assert env.log == ["env setup", "setup", "late close", "close", "env teardown"]
        env.log.clear()
    await env.aclose()
    assert env.log == []


async def test_all_is_closed_also_when_one_cannot_be() -> None:
    env = Counting()
    env.breaks = True
    await env.areset(seed=0)
    with pytest.raises(EnvError, match=r"Counting.Counter.close: OSError\('broken'\)"):
        await env.astep("done")
    assert env.log == ["env setup", "setup", "late close", "close", "env teardown"]


async def test_a_toolset_that_cannot_be_set_up_ends_the_episode_and_is_closed() -> None:
    class Broken(Counter):
        async def setup(self) -> None:
            raise EnvFault("no disk")

    class Unlucky(Counting):
        toolsets = (Broken,)

    env = Unlucky()
    with pytest.raises(EnvFault, match="no disk"):
        await env.areset(seed=0)
    await env.aclose()
    assert env.log == ["env setup", "close", "env teardown"]


def test_two_tools_of_one_name_are_refused() -> None:
    class Twice(Counting):
        toolsets = (Counter, Counter)

    with pytest.raises(ContractError, match="Twice: two tools are called 'increment'"):
        Twice()


# ----------------------------------------------------------------------------------------- sandboxes


async def test_calls_of_one_message_share_one_sandbox_and_the_episode_ends_it() -> None:
    boxes = Boxes()
    env = Tools(sandbox_provider=boxes)
    for episode in (1, 2):
        await env.areset(seed=0)
        await env.astep(calls(("box", {}), ("box", {}), ("box", {})))
        await env.astep(calls(("box", {})))
        assert len(boxes.made) == episode
        await env.astep("done")
        assert [b.closed for b in boxes.made] == [1] * episode
    await env.aclose()
    assert boxes.closed == 0  # it was lent


async def test_a_sandbox_that_comes_too_late_is_closed_too() -> None:
    boxes = Boxes()
    env = Tools(sandbox_provider=boxes)
    await env.areset(seed=0)
    step = asyncio.ensure_future(env.astep(calls(("box", {}))))
    while env._sandbox is None:
        await asyncio.sleep(0)
    step.cancel()
    await env.aclose()
    assert [b.closed for b in boxes.made] == [1]


async def test_the_wait_for_a_sandbox_is_not_the_tools_time() -> None:
    class Slow(Tools):
        tool_timeout_s = 0.005

        @tool
        async def then_hang(self) -> str:
            """Open the sandbox, and never answer."""
            await asyncio.gather(self.sandbox(), self.sandbox())
            await asyncio.sleep(600)
            return ""

    env = Slow(sandbox_provider=Boxes())
    await env.areset(seed=0)
    observation, *_ = await env.astep(calls(("box", {}), ("then_hang", {}), ("box", {})))
    answers = [m["content"] for m in observation["messages"]]
    assert answers == ["open", "Error: then_hang took longer than 0.005 s", "open"]
    await env.aclose()


async def test_sandboxes_come_from_whom_it_is_told_unless_it_was_given_a_provider() -> None:
    own, others = Boxes(), Boxes()
    for env, used in ((Tools(), others), (Tools(sandbox_provider=own), own)):
        env.use_sandboxes(others)  # type: ignore[arg-type]
        await env.areset(seed=0)
        await env.astep(calls(("box", {})))
        await env.aclose()
        assert [b.closed for b in used.made] == [1]
    assert (own.closed, others.closed) == (0, 0)  # lent


async def test_a_sandbox_that_cannot_be_made_is_an_error_of_the_episode() -> None:
    env = Tools(sandbox_provider=Boxes(SandboxUnavailable("no")))
    await env.areset(seed=0)
    with pytest.raises(SandboxUnavailable):
        await env.astep(calls(("box", {}), ("box", {})))
    await env.aclose()


async def test_teardown_may_still_use_the_sandbox() -> None:
    class Collects(Tools):
        async def teardown(self):
            self.seen = await self.sandbox()

    boxes = Boxes()
    env = Collects(sandbox_provider=boxes)
    await env.areset(seed=0)
    await env.astep("done")
    assert env.seen is boxes.made[0]
    assert [b.closed for b in boxes.made] == [1]


async def test_a_provider_of_its_own_is_closed_and_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    providers: list[Boxes] = []

    def make(*, size: int) -> Boxes:
        assert size == 0  # nothing is kept ready for one env
        providers.append(Boxes())
        return providers[-1]

    monkeypatch.setattr("vime_agents.registry.sandbox_pool", make)
    env = Tools()
    for count in (1, 2):
        await env.areset(seed=0)
        await env.astep(calls(("box", {})))
        await env.aclose()
        await env.aclose()
        assert [p.closed for p in providers] == [1] * count


async def test_a_class_without_a_spec_has_no_sandbox() -> None:
    with pytest.raises(ContractError, match="declares no `sandbox_spec`"):
        await Echo().sandbox()


# ----------------------------------------------------------------------------------------- sync face


async def test_the_sync_face_works_inside_a_running_loop() -> None:
    env = Echo()
    env.reset(seed=0)
    assert env.step(str(env.task["n"]))[1] == 1.0
    env.close()
    env.close()


def test_plain_hooks_are_called_in_the_thread_of_whoever_steps() -> None:
    seen: list[tuple[str, str]] = []

    class Plain(Chatty):
        max_turns = 2

        def note(self, hook):
            seen.append((hook, threading.current_thread().name))

        def setup(self):
            self.note("setup")

        def prompt(self):
            self.note("prompt")
            return "go"

        def respond(self, message):
            self.note("respond")
            return [user("more")]

        def score(self, text):
            self.note("score")
            return 0.5

        def teardown(self):
            self.note("teardown")

    env = Plain()
    env.reset(seed=0)
    assert env.step("a")[1:4] == (0.0, False, False)
    assert env.step("b")[1:4] == (0.5, False, True)
    env.reset(seed=0)
    env.close()
    hooks = ["setup", "prompt", "respond", "respond", "score", "teardown", "setup", "prompt", "teardown"]
    assert seen == [(hook, threading.current_thread().name) for hook in hooks]


def test_one_async_hook_takes_the_others_off_the_callers_thread() -> None:
    class Mixed(Chatty):
        async def respond(self, message):
            self.loop = asyncio.get_running_loop()  # also where nothing is awaited
            return None

        def score(self, text):
            assert threading.current_thread().name.startswith("vime-hook")
            return 0.5

        async def teardown(self):
            assert asyncio.get_running_loop() is self.loop

    env = Mixed()
    env.reset(seed=0)
    assert env.step("x")[1] == 0.5


def test_an_async_hook_that_does_not_look_like_one_and_a_face_of_its_own_find_a_loop() -> None:
    def decorated(hook):
        return lambda *args: hook(*args)

    class Decorated(Echo):
        @decorated
        async def score(self, text):
            await asyncio.sleep(0)
            return 0.25

    class Slow(Echo):
        async def astep(self, action):
            await asyncio.sleep(0)
            return await super().astep(action)

    for env, reward in ((Decorated(), 0.25), (Slow(), 0.0)):
        env.reset(seed=0)
        assert env.step("x")[1] == reward
        env.close()


def test_the_sandbox_of_an_env_with_plain_hooks_is_closed_where_it_was_made() -> None:
    class Lazy(Echo):
        sandbox_spec = SandboxSpec()

    boxes = Boxes()
    env = Lazy(sandbox_provider=boxes)
    env.reset(seed=0)
    run_on_background_loop(env.sandbox())
    env.close()
    assert boxes.made[0].closed == 1


def test_an_interrupt_in_a_hook_leaves_an_env_that_can_be_closed() -> None:
    class Interrupted(Echo):
        torn = 0

        def score(self, text):
            raise KeyboardInterrupt

        def teardown(self):
            self.torn += 1

    env = Interrupted()
    env.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        env.step("x")
    env.close()
    assert env.torn == 1


def test_the_sync_face_inside_a_hook_is_refused_instead_of_hanging() -> None:
    class Nested(Echo):
        async def prompt(self):
            Echo().reset(seed=0)
            return "never"

    with pytest.raises(ContractError, match="await areset/astep"):
        Nested().reset(seed=0)


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    Echo().reset(seed=0)  # the parent's loop exists
    child = os.fork()
    if child == 0:
        status = 1
        try:
            env = Echo()
            env.reset(seed=0)
            status = int(env.step(str(env.task["n"]))[1] != 1.0)
        finally:
            os._exit(status)
    for _ in range(1000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0


def test_render_shows_the_conversation() -> None:
    env = Echo(render_mode="ansi")
    env.reset(options={"task": Task(id="t", inputs={"n": 5})})
    env.step("5")
    assert env.render() == "[user] Repeat 5\n[assistant] 5"
