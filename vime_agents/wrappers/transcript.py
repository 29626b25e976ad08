"""A wrapper that writes down every episode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from vime_agents import messages as msg
from vime_agents.env import Info, Observation
from vime_agents.episode import RewardResult
from vime_agents.messages import Message
from vime_agents.wrappers.base import AgentWrapper, Step


class TranscriptRecorder(AgentWrapper, RecordConstructorArgs):
    """Appends one line of JSON for each episode to a file, when the episode ends.

    Keys: `task_id`; `messages`, as the agent saw and wrote them; `rewards` of the steps; `stop`, None when
    the episode was left before its end; `reward` and `components`, None where the env gave no score. Envs of
    several processes may share a file: a line is one write. The Runner's episode store knows more.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, path: str) -> None:
        """`path`: of the file; its folder is made when it is missing."""
        RecordConstructorArgs.__init__(self, path=str(path))
        AgentWrapper.__init__(self, env)
        self.path = Path(path)
        self._episode: dict[str, Any] | None = None

    def begin(self, observation: Observation, info: Info) -> tuple[Observation, Info]:
        """A new episode; the one before is over, whether it ended or not."""
        self._write(stop=None)
        self._episode = {
            "task_id": info.get("task_id"),
            "messages": [*observation["messages"]],
            "rewards": [],
        }
        return observation, info

    def action(self, action: str | Message) -> str | Message:
        """Note what the agent says."""
        if self._episode is not None:
            self._episode["messages"].append(msg.assistant(action) if isinstance(action, str) else action)
        return action

    def answer(self, step: Step) -> Step:
        """Note what the env says."""
        if self._episode is not None:
            self._episode["messages"] += step.observation["messages"]
            self._episode["rewards"].append(step.reward)
            if step.done:
                self._write(stop=step.info.get("stop", "done"), result=step.info.get("reward_result"))
        return step

    async def score_partial(self) -> RewardResult:
        """A limit fired outside: that, too, is an end."""
        result = await super().score_partial()
        self._write(stop="limit", result=result)
        return result

    async def aclose(self) -> None:
        """Write down an episode that has not ended."""
        self._write(stop=None)
        await super().aclose()

    def close(self) -> None:
        """Write down an episode that has not ended."""
        self._write(stop=None)
        super().close()

    def _write(self, *, stop: str | None, result: RewardResult | None = None) -> None:
        episode, self._episode = self._episode, None
        if episode is None:
            return
        episode |= {
            "stop": stop,
            "reward": None if result is None else result.value,
            "components": None if result is None else dict(result.components),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write(json.dumps(episode).encode() + b"\n")
