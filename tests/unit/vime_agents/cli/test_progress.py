"""Progress: a bar on a terminal, few lines elsewhere."""

import io
from dataclasses import replace

from vime_agents.cli.progress import EvalProgress
from vime_agents.episode import Episode, Outcome, RewardResult, Trajectory


def episode(reward: float) -> Episode:
    result = RewardResult(value=reward, components={"score": reward}, weights={"score": 1.0})
    return Episode(
        id="e",
        env_id="E",
        task_id="t",
        group_id="g",
        seed=0,
        outcome=Outcome(kind="terminated", stop="done"),
        trajectories=(Trajectory(agent="agent", policy="p", turns=(), reward=result),),
        started_at=0.0,
        duration_s=1.0,
    )


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self):
        return True


def test_without_a_terminal_there_are_at_most_ten_lines_and_the_last_is_complete():
    stream = io.StringIO()
    with EvalProgress(1000, stream) as progress:
        for i in range(1000):
            progress.add(episode(float(i % 2)))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0] == "100/1000 episodes, reward 0.500, 0 failed"
    assert lines[-1] == "1000/1000 episodes, reward 0.500, 0 failed"


def test_failures_are_counted_apart_from_the_reward():
    stream = io.StringIO()
    failed = replace(
        episode(0.0), trajectories=(), outcome=Outcome(kind="failed", stop="error", cause="engine")
    )
    with EvalProgress(2, stream) as progress:
        progress.add(episode(1.0))
        progress.add(failed)
    assert stream.getvalue().splitlines()[-1] == "2/2 episodes, reward 1.000, 1 failed"


def test_on_a_terminal_the_bar_goes_away_again():
    stream = Terminal()
    with EvalProgress(2, stream) as progress:
        progress.add(episode(1.0))
        progress.add(episode(1.0))
    shown = stream.getvalue()
    assert "2/2" in shown
    assert "episodes" not in shown
    assert "\x1b[?25h" in shown  # the cursor is back
