"""Settings of `vime-agents eval`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from vime_agents.config.fields import (
    Bounds,
    MayChange,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
)
from vime_agents.config.options import Options
from vime_agents.config.prices import Prices
from vime_agents.config.vllm_flags import OWNED, Value
from vime_agents.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class WhatOptions:
    """What is evaluated."""

    env: str
    """Id (`Calculator-v0`) or `module:Class` of the environment; may be given without the flag."""
    model: str
    """scripted:gold, scripted:wrong, scripted:garbage, scripted:random; http://HOST:PORT/v1#NAME, a server
    that speaks OpenAI's chat API; or vllm:FOLDER, a Hugging Face folder to serve here."""
    agents: str = ""
    """Who else plays a game, as AGENT=MODEL,...; an agent's name or a role, and a model as of --model. The
    rest are --model's. AGENT='MODEL|MODEL|...' is a pool of opponents, who play equally often."""
    rotate_seats: bool = False
    """--model and --agents change seats from episode to episode, among agents of one role or of none; the
    report then tells strength, in Elo, from what the first seat is worth."""
    num_tasks: PositiveInt = 100
    """Tasks, from the start of the split."""
    samples_per_task: PositiveInt = 1
    """Episodes of each task; pass@1 to pass@k are reported."""
    split: str = "test"
    """Split of the environment's tasks."""
    seed: NonNegativeInt = 0
    """Seed of tasks and sampling."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How it is sampled."""

    temperature: NonNegativeFloat = 0.0
    """Sampling temperature; 0: greedy."""
    top_p: Probability = 1.0
    """Nucleus sampling."""
    max_response_len: PositiveInt = 256
    """Most tokens sampled in one turn."""
    max_context_len: PositiveInt = 2048
    """Context of the engine that vllm: starts."""
    renderer: str = "auto"
    """How chat messages become tokens for vllm: models: auto, the model's own chat template; or a renderer
    of the package `renderers` by name (qwen3, ...)."""
    episode_timeout: PositiveFloat = 600.0
    """Seconds that one episode may take."""
    turn_timeout: PositiveFloat = 120.0
    """Seconds that one policy call, or one answer of the environment, may take."""


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """How much is played at once."""

    concurrency: Annotated[PositiveInt, MayChange()] = 64
    """Episodes in flight."""
    max_connections: Annotated[int, Bounds(1), MayChange()] | None = None
    """Most calls at once to each server of an http: model; None: --concurrency. Up to that their number
    adapts to what the server answers and refuses (429, 503, 529). Time that a call waits for its turn, or
    because the server asked for it, counts to none of the time-outs."""
    max_retries: Annotated[NonNegativeInt, MayChange()] = 2
    """Fresh attempts at an episode whose infrastructure failed."""
    sandbox_pool_size: Annotated[NonNegativeInt, MayChange()] = 4
    """Sandboxes to keep ready before an episode asks; 0: none."""
    max_sandboxes: Annotated[int, Bounds(1), MayChange()] | None = None
    """Sandboxes open at once; more episodes wait. None: as many as the host has room for."""


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """What it may cost."""

    price: Annotated[str, MayChange()] | None = None
    """IN,OUT or IN,OUT,CACHED: dollars for a million tokens that --model reads, writes, and reads from its
    server's prefix cache; the report then has the cost."""
    max_cost: Annotated[float, Bounds(0, above_low=True), MayChange()] | None = None
    """Dollars. Once they are spent no episode starts, those in flight are finished, and the exit code is 4;
    the same command with more, and the same --out, goes on."""
    max_total_tokens: Annotated[int, Bounds(1), MayChange()] | None = None
    """Tokens that --model may read and write in all; as --max-cost."""
    cache: Annotated[str, MayChange()] | None = None
    """SQLite file that keeps the answers of http: models; what is asked again by the same episode costs
    nothing. Several evaluations may use one file at once."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What is reported."""

    out: Annotated[str, MayChange()] | None = None
    """Folder for the episodes and the report. One whose evaluation was interrupted goes on with the same
    command."""
    json: Annotated[bool, MayChange()] = False
    """Print the report as one line of JSON."""
    max_error_rate: Annotated[float, Bounds(0, 1), MayChange()] = 0.1
    """Share of episodes that may fail for reasons of infrastructure; more: exit code 3."""
    fail_under: Annotated[float, MayChange()] | None = None
    """Least mean reward; below it, or when no episode has a reward, the exit code is 1."""
    dry_run: Annotated[bool, MayChange()] = False
    """Print what would be played, and what of it is in --out already; play nothing, ask nobody, write
    nothing."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig(Options, WhatOptions, SamplingOptions, RunnerOptions, BudgetOptions, ReportOptions):
    """Everything that an evaluation depends on."""

    program: ClassVar[str] = "vime-agents eval ENV"
    summary: ClassVar[str] = (
        "Play an environment with a model and report its mean reward with a 95 % confidence interval. "
        "Needs no Ray and no torch, except for vllm: models."
    )

    owned_vllm_flags: ClassVar[Mapping[str, str]] = {
        **OWNED,
        "model": "give --model vllm:FOLDER",
        "max-model-len": "give --max-context-len",
        "seed": "give --seed",
    }

    @classmethod
    def aliases(cls) -> Mapping[str, tuple[str, ...]]:
        """Short flags."""
        return {
            "model": ("-m", "--policy"),
            "num_tasks": ("-n",),
            "samples_per_task": ("-k",),
            "concurrency": ("-c",),
        }

    def check(self) -> None:
        """Raises ConfigError where settings contradict each other."""
        check_vllm_has_a_server(self.model, self.agents, self.vllm)
        self._check_budget()
        self._check_cache()
        same = not (self.rotate_seats or "|" in self.agents or self.model.startswith("scripted:"))
        if self.samples_per_task > 1 and self.temperature == 0 and same:
            raise ConfigError(
                f"--samples-per-task {self.samples_per_task}: greedy episodes of a task are all the same; "
                "give --temperature, for example 1.0"
            )

    def _check_budget(self) -> None:
        if self.price is not None:
            Prices.parse(self.price)
        elif self.max_cost is not None:
            raise ConfigError("--max-cost: nothing is known of the cost; give --price IN,OUT")
        for flag in ("price", "max_cost", "max_total_tokens"):
            if getattr(self, flag) is not None and self.model.startswith("scripted:"):
                raise ConfigError(
                    f"--{flag.replace('_', '-')}: {self.model} reads and writes no tokens; leave the flag out"
                )

    def _check_cache(self) -> None:
        if self.cache is None or self.model.startswith(("http://", "https://")):
            return
        why = "asks no model, so that there is nothing to keep"
        if self.model.startswith("vllm:"):
            why = "gives exact tokens, which a cache of texts does not hold"
        raise ConfigError(f"--cache: {self.model} {why}; give a model http://HOST:PORT/v1#NAME")


def check_vllm_has_a_server(model: str, agents: str, vllm: Mapping[str, Value]) -> None:
    """Raises ConfigError where there are flags of vLLM's, but nothing starts it."""
    if vllm and not model.startswith("vllm:") and "vllm:" not in agents:
        first = next(iter(vllm))
        raise ConfigError(f"--vllm-{first}: only a model vllm:FOLDER starts vLLM, got {model!r}")
