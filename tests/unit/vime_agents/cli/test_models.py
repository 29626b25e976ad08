"""`--model` and `--agents` -> policies that are open together."""

from __future__ import annotations

from vime_agents.cli.models import open_agents, open_policy
from vime_agents.config import EvalConfig
from vime_agents.policies.admission import Admissions
from vime_agents.policies.openai_chat import OpenAIChatPolicy
from vime_agents.policies.pool import PolicyPool


async def test_model_and_agents_share_the_places_of_a_server_that_both_use() -> None:
    config = EvalConfig(
        env="TicTacToe-v0",
        model="http://127.0.0.1:9/v1#a",
        agents="O=http://127.0.0.1:9/v1#b|http://127.0.0.1:8/v1#c",
    )
    admissions = Admissions(4)
    async with (
        open_agents(config, admissions=admissions) as agents,
        open_policy(config, admissions=admissions) as policy,
    ):
        pool = agents["O"]
        assert isinstance(pool, PolicyPool)
        players = [p for p in (policy, *pool.members) if isinstance(p, OpenAIChatPolicy)]
        model, same, other = (player.admission for player in players)
        assert model is not None
        assert model is same
        assert other is not None
        assert other is not model
