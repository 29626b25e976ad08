"""Words for outcomes and rewards, and text that does nothing."""

import pytest

from tests.unit.vime_agents.episodes import make_episode, with_turn_rewards
from tests.unit.vime_agents.stored import HOSTILE
from vime_agents.episode import Outcome, RewardResult
from vime_agents.viewer.text import one_line, outcome_text, reward_text, step_rewards_text, visible


def test_a_reward_is_its_sum_and_its_metrics():
    reward = RewardResult(
        value=1.4, components={"a": 1, "b": 0.8, "n": 3}, weights={"a": 1, "b": 0.5, "n": 0}
    )
    assert reward_text(reward) == "1.4 = a 1 + 0.5 x b 0.8; metrics: n 3"
    unscored = RewardResult(value=None, status="error", detail="boom")
    assert reward_text(unscored) == "none: error: boom"


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome(kind="terminated", stop="done"), "done"),
        (Outcome(kind="truncated", stop="max_turns", detail="3"), "cut: max_turns: 3"),
        (Outcome(kind="failed", stop="error", cause="tool", detail="x"), "failed (tool), error: x"),
    ],
)
def test_an_end_in_words(outcome, text):
    assert outcome_text(outcome) == text


def test_step_rewards_are_told_where_there_is_more_than_the_last():
    episode = make_episode(num_turns=2)
    (with_steps,) = with_turn_rewards(episode, 0.5, 1.0).trajectories
    (without,) = with_turn_rewards(episode, 0.0, 1.0).trajectories
    assert step_rewards_text(with_steps) == "; by turn: 0.5, 1"
    assert step_rewards_text(without) == ""


def test_what_would_act_on_a_terminal_is_written_out_and_the_rest_stays():
    expected = (
        "</script></pre><img src=x onerror=alert(1)>'\"&\\x00\\x1b[2J\\x0d\\u2028\\u202e\\ud800 \\ud800 😀"
    )
    assert visible(HOSTILE) == expected
    assert visible("tab\there\nnew line é 漢 👩‍🚀") == "tab\there\nnew line é 漢 👩‍🚀"
    assert visible("\x9b31m\x7f\u2067") == "\\x9b31m\\x7f\\u2067"


def test_one_line_is_short_and_says_that_it_was_cut():
    assert one_line("a\nb\tc") == "a\\nb\\tc"
    assert one_line("x" * 10, most=10) == "x" * 10
    assert one_line("x" * 11, most=10) == "x" * 9 + "…"
