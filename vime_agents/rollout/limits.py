"""Bounds on what one episode may take. Each has a name that ends up in `Outcome.stop`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vime_agents.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The deadline tree below a run: episode > turn > generation or env step.

    What a policy awaits off the clock (`deadlines.py`), such as a place at a busy server, counts to none of
    them: nobody's reply was slow. It has bounds of its own, see `policies/admission.py`.
    """

    episode_s: float = 600.0
    """Whole episode, resets and grading included: `timeout:episode`."""
    generation_s: float = 120.0
    """One policy call: `timeout:generation`."""
    env_s: float = 120.0
    """One reset or step of the env, grading included: `timeout:env`."""
    close_s: float = 20.0
    """Freeing an env; passed, it is given up and counted."""
    max_turns: int | None = None
    """Policy calls; None leaves it to the env: `max_turns`."""
    max_sampled_tokens: int | None = None
    """Tokens sampled in the whole episode: `max_tokens`."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and not value > 0:
                raise ConfigError(f"limit {f.name} must be > 0, got {value}")
