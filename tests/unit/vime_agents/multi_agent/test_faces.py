"""The PettingZoo faces: PettingZoo's own tests, and what they do not ask."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest
from gymnasium import spaces

from tests.unit.vime_agents.multi_agent.games import LastOneOut, Nim
from vime_agents.errors import ContractError
from vime_agents.multi_agent import MultiAgentEnv
from vime_agents.spaces import Reply
from vime_envs.games.kuhn_poker import KuhnPoker
from vime_envs.games.prisoners_dilemma import PrisonersDilemma
from vime_envs.games.tic_tac_toe import TicTacToe

pytest.importorskip("pettingzoo")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they import an env of PettingZoo's in a way that it calls deprecated
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

# What PettingZoo recommends of arrays and names does not fit to conversations.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(Observation is not a NumPy array|(Observation|Action) space for each agent probably|"
    "We recommend agents to be named):UserWarning"
)


class Digits(Reply):
    """Samples that are mostly legal, so that PettingZoo's tests play games to their end."""

    def sample(self, mask: object = None, probability: object = None) -> str:
        words = ("check", "bet", "call", "fold", "cooperate", "defect")
        return f"{self.np_random.integers(10)} {words[self.np_random.integers(6)]}"


def with_digits(make: Callable[[], MultiAgentEnv]) -> Callable[[], MultiAgentEnv]:
    def made() -> MultiAgentEnv:
        env = make()
        env.action_spaces = {agent: Digits() for agent in env.possible_agents}
        return env

    return made


MAKERS = [Nim, LastOneOut, TicTacToe, KuhnPoker, PrisonersDilemma]
MAKERS = [*MAKERS, *(with_digits(make) for make in MAKERS)]


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[], MultiAgentEnv]]:
    return request.param


def test_pettingzoo_finds_nothing(make: Callable[[], MultiAgentEnv]) -> None:
    api_test(make().aec(), num_cycles=30)
    parallel_api_test(make().parallel(), num_cycles=30)
    seed_test(lambda: make().aec(), num_cycles=10)
    parallel_seed_test(lambda: make().parallel(), num_cycles=10)


def test_whole_games_are_the_same_by_either_face_and_without_one() -> None:
    moves = [{"a": "5", "b": "0", "c": "6"}, {"a": "1", "c": "2"}]
    plain, parallel, aec = LastOneOut(), LastOneOut().parallel(), LastOneOut().aec()
    seen = [plain.reset(seed=1)[0], *(plain.step(move)[0] for move in moves)]
    assert [parallel.reset(seed=1)[0], *(parallel.step(move)[0] for move in moves)] == seen
    assert parallel.agents == []
    aec.reset(seed=1)
    order, returns = [], dict.fromkeys("abc", 0.0)
    queue = [(agent, text) for move in moves for agent, text in move.items()]
    for agent in aec.agent_iter():
        _, reward, terminated, truncated, _ = aec.last()
        returns[agent] += reward
        if terminated or truncated:
            aec.step(None)
            continue
        expected, text = queue.pop(0)
        order.append(agent)
        assert agent == expected
        aec.step(text)
    assert order == ["a", "b", "c", "a", "c"]
    assert returns == {agent: plain.results[agent].value for agent in "abc"}


def test_those_who_act_at_once_do_not_see_each_other() -> None:
    env = LastOneOut().aec()
    env.reset(seed=1)
    before = {agent: env.observe(agent) for agent in env.agents}
    env.step("9 is my secret plan")
    assert env.agent_selection == "b"
    assert [env.observe(agent) for agent in "abc"] == [{"messages": ()}, before["b"], before["c"]]
    env.close()


def test_by_the_parallel_face_a_turn_is_still_a_turn() -> None:
    env = Nim().parallel()
    observations, infos = env.reset(seed=0)
    assert (infos["first"]["acting"], infos["second"]["acting"]) == (True, False)
    observations, *_ = env.step({"first": "2", "second": "1"})
    assert observations["first"] == {"messages": ()}
    assert "3 sticks" in observations["second"]["messages"][0]["content"]
    with pytest.raises(ContractError, match=r"turn of \['second'\], who have no action"):
        env.step({"first": "2"})
    env.close()


def test_a_dead_agent_has_no_action_and_a_live_one_needs_one() -> None:
    env = Nim().aec()
    env.reset(seed=0)
    with pytest.raises(ContractError, match="cannot be None"):
        env.step(None)
    for move in ("no", "no"):
        env.step(move)
    assert env.terminations == {"first": True, "second": True}
    with pytest.raises(ValueError, match="only valid action is None"):
        env.step("1")


def test_a_face_speaks_of_its_env() -> None:
    env = Nim()
    for face in (env.aec(), env.parallel()):
        assert str(face) == "Nim"
        assert isinstance(face.observation_space("first"), spaces.Dict)
        face.reset(seed=0)
        assert face.render() == "[first] [user] 5 sticks are left. Take 1 or 2."
        face.close()


def test_without_pettingzoo_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "from vime_envs.games.tic_tac_toe import TicTacToe\n"
        "from vime_agents.errors import MissingDependencyError\n"
        "env = TicTacToe(); env.reset(seed=0); env.close()\n"
        "try: env.aec()\n"
        "except MissingDependencyError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'vime-agents[games]'" in done.stdout
