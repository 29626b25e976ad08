"""How much the checks try, how long they wait, and what of that can be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from vime_agents.errors import ConfigError

_CHECK_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Between what a number must lie, in the unit of its field."""

    least: float
    most: float
    no_less: str
    """Why."""
    no_more: str = "that is hardly meant"

    def problem(self, value: float, *, units: float = 1.0) -> str | None:
        """What is wrong with `value`, of which `units` make one of the field's; None: nothing."""
        least, most = self.least * units, self.most * units
        if value > most:
            return f"{value} is more than {most:.0f}: {self.no_more}"
        if value >= least:
            return None
        return f"{value} is not {least:g} or more: {self.no_less}"  # NaN, too


_MANY = 1_000_000
BOUNDS: Mapping[str, Bound] = {
    "num_tasks": Bound(
        least=3, most=_MANY, no_less="three at least show whether a reply is paid that answers another one"
    ),
    "num_seeds": Bound(least=1, most=_MANY, no_less="without a seed nothing is played"),
    "num_leak_episodes": Bound(
        least=16,
        most=_MANY,
        no_less="growth is measured over the second half, and fewer than 8 episodes neither have each kind "
        "of reply in them nor make little of what Python allocates once",
    ),
    "lag_s": Bound(
        least=0.01,
        most=5.0,
        no_less="the event loop is looked at each 5 ms",
        no_more="a loop that is held for so long is what the check `hang` is for",
    ),
}
"""Field of Scale -> its bounds, of those that have any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is tried, and how long for. `FULL` unless something else is asked for.

    Raises:
        ConfigError: a field is outside its bounds.
    """

    num_tasks: int = 6
    """Tasks, the first ones of the split, that the checks play which play several; of a game, also how many
    whole games of each kind but random ones."""
    num_listed_tasks: int = 500
    """Tasks that are only looked at; never fewer than are played."""
    num_seeds: int = 10
    """Seeds, from 0, that the checks of determinism play with each kind of replies."""
    num_random_episodes: int = 100
    """Episodes of samples of the action space; of a game, also how many of legal moves at random."""
    num_leak_episodes: int = 200
    """Episodes that the leak checks play between two looks at what is held, after some to warm up. The growth
    of the memory is that of the second half."""
    huge_characters: int = 10_000_000
    """Length of the longest reply, in characters; a tool's longest argument has a tenth."""
    lag_s: float = 0.05
    """Longest that an async hook or tool may hold the event loop, in seconds."""
    call_s: float = 20.0
    """Longest that one reset, step or close may take, in seconds, before it is given up."""
    settle_s: float = 3.0
    """What ends by itself within so many seconds after its episode is no leak."""
    tool_s: float = 2.0
    """`tool_timeout_s` of envs that are given endless code."""

    def __post_init__(self) -> None:
        for name, bound in BOUNDS.items():
            problem = bound.problem(getattr(self, name))
            if problem is not None:
                raise ConfigError(f"Scale.{name}: {problem}")
        for name in {f.name for f in fields(self)} - BOUNDS.keys():
            if not getattr(self, name) > 0:
                raise ConfigError(f"Scale.{name}: must be above 0, got {getattr(self, name)!r}")

    @property
    def check_s(self) -> float:
        """Longest that one check may take, in seconds, before its process is ended.

        A quarter of an hour, and as many times that as the largest of these numbers is above that of `FULL`.
        """
        more = (
            self.num_tasks / FULL.num_tasks,
            self.num_seeds / FULL.num_seeds,
            self.num_random_episodes / FULL.num_random_episodes,
            self.num_leak_episodes / FULL.num_leak_episodes,
        )
        return _CHECK_S * max(1.0, *more) * max(1.0, self.call_s / FULL.call_s)

    @property
    def listing_s(self) -> float:
        """Longest that reading the tasks that are looked at may take, in seconds: hundreds, as three calls.

        A game's hardest tasks take 7 ms each of a processor, and it may be one that others want too.
        """
        return 3 * self.call_s * max(1.0, self.num_tasks / self.num_listed_tasks)

    @property
    def fresh_s(self) -> float:
        """Longest that a new process may take to play all seeds, in seconds: half of `check_s` at most."""
        return max(180.0, 45.0 * self.num_seeds)


FULL = Scale()
"""Unless something else is asked for."""
QUICK = Scale(
    num_tasks=3,
    num_seeds=4,
    num_random_episodes=20,
    num_leak_episodes=24,
    huge_characters=1_000_000,
    call_s=10.0,
    settle_s=1.0,
    tool_s=1.0,
)
"""Of `--quick`: fewer tasks, seeds and episodes, and shorter waits."""


def differences(scale: Scale) -> tuple[str, Mapping[str, float]]:
    """(full or quick, whichever is nearer; field -> value, where `scale` differs from that)."""
    found: list[tuple[str, dict[str, float]]] = []
    for name, base in (("full", FULL), ("quick", QUICK)):
        values = {field: getattr(scale, field) for field in Scale.__dataclass_fields__}
        found.append((name, {f: value for f, value in values.items() if value != getattr(base, f)}))
    return min(found, key=lambda pair: len(pair[1]))
