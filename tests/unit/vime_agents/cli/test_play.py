"""`vime-agents play`, over a pipe."""

import io
import sys

import pytest

from vime_agents.cli import main
from vime_agents.config.play import PlayConfig
from vime_agents.errors import ConfigError

GAMES = '''
from vime_agents.errors import IllegalMove
from vime_agents.multi_agent import Game


class Count(Game):
    """Whoever says 3 wins."""

    possible_agents = ("A", "B")
    zero_sum = True

    def start(self, rng):
        self.said = 0
        return "A"

    def view(self, me):
        return f"{me}, after {self.said}?"

    def move(self, me, text):
        if text not in self.legal(me):
            raise IllegalMove("one or two more")
        self.said = int(text)
        other = "B" if me == "A" else "A"
        return {me: 1.0, other: -1.0} if self.said == 3 else other

    def legal(self, me):
        return [str(n) for n in (self.said + 1, self.said + 2) if n <= 3]

    def gold(self, me):
        return self.legal(me)[-1]
'''


@pytest.fixture
def play(capsys, monkeypatch):
    """Run the command on some lines of input; (exit code, output, errors)."""

    def run(*flags, lines=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        code = main(["play", *flags])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def games(tmp_path):
    """`cli_games:Count`."""
    (tmp_path / "modules" / "cli_games.py").write_text(GAMES)
    yield "cli_games:Count"
    sys.modules.pop("cli_games", None)


def test_a_person_calls_a_tool_answers_and_sees_the_reward(play):
    code, out, err = play("cli_envs:Sum", "--task", "3", lines="/add a=2 b=1\n3\n")
    assert (code, err) == (0, "")
    title, *rest = out.splitlines()
    assert title == "cli_envs:Sum (test), task test-3, seed 0: at most 3 turns, reward 0 to 1"
    question = rest[0].removeprefix("[user] ")
    right = str(int(question.split()[0]) + 1)
    assert rest[1:] == [
        "[agent] /add a=2 b=1",
        "[tool add] 3",
        "[agent] 3",
        "end: done",
        f"reward {int(right == '3')} = score {int(right == '3')}",
        "counters: tool_calls 1",
    ]


def test_what_is_not_understood_costs_no_turn(play):
    lines = (
        "/ad a=1 b=2\n\n   \n/add a=1\n/help add\n/help\n/add a=1 b=x\n/add a=1 b=1 \\\n/add a=2 b=2\nend\n"
    )
    code, out, _ = play("cli_envs:Sum", lines=lines)
    assert code == 0
    assert "no tool 'ad'. Did you mean /add?" in out
    assert "add needs b; the call is add(a, b)" in out
    assert out.count("    a: integer  one.") == 2
    assert "/quit" in out
    # What the tool says of a wrong value is the model's to see as well, and is a turn.
    assert "[tool add] Error: bad arguments for add: b:" in out
    assert "[tool add] 2\n[tool add] 4\n" in out
    assert "end: done" in out
    assert "counters: tool_calls 3, tool_errors 1" in out


@pytest.mark.parametrize("last", ["", "/quit\n"])
def test_whoever_leaves_is_scored_as_it_stands(play, last):
    code, out, err = play("KeyLookup-v0", lines=f" get(boat)\n{last}")
    assert (code, err) == (0, "")
    assert "end: cut: cancelled: the player left" in out
    assert "reward 0.3 = 0.3 x call 1 + 0.7 x answer 0; metrics: success 0" in out


def test_enter_is_the_line_end_that_an_env_waits_for(play):
    code, out, _ = play("KeyLookup-v0", lines=" get(boat) and more\n ?\n")
    assert code == 0
    assert "[agent]  get(boat)\n" in out
    assert "end: done" in out


def test_a_model_is_watched_with_its_calls_as_a_person_would_write_them(play):
    code, out, _ = play("cli_envs:Sum", "--policy", "gold", "--seed", "5", "--split", "train")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("cli_envs:Sum (train), task train-0, seed 5:")
    assert lines[2].startswith("[agent] /add a=")
    assert lines[-2] == "reward 1 = score 1"


def test_pause_waits_for_a_line_before_each_turn(play):
    code, out, _ = play("cli_envs:Sum", "-m", "scripted:gold", "--pause", lines="\n")
    assert code == 0
    assert out.count("[agent]") == 1
    assert "end: cut: cancelled: the player left" in out


def test_an_episode_that_fails_is_told_and_has_its_exit_code(play):
    code, out, _ = play("cli_envs:Broken", lines="/add a=1 b=1\n")
    assert code == 1
    assert "end: failed (env), error: EnvFault: the adding machine is on fire" in out
    assert "reward none: error" in out


def test_what_would_control_the_terminal_is_shown_as_text(play):
    code, out, _ = play("cli_envs:Sum", lines="\x1b[2J\x07 \t ü 🙂 \u202f\n")
    assert code == 0
    assert "[agent] \\x1b[2J\\x07 \t ü 🙂 \u202f\n" in out
    assert "\x1b" not in out


def test_colour_stays_out_of_a_pipe_whatever_the_environment_wants(play, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, _ = play("cli_envs:Sum", "--policy", "gold")
    assert "\x1b" not in out


def test_in_a_game_a_person_sees_its_own_seat_alone(play, games):
    code, out, _ = play(games, "--agents", "B=scripted:gold", lines="5\n1\n")
    assert code == 0
    assert "[user to A] A, after 0?" in out
    assert "That is not a legal move: one or two more. Try again." in out
    assert "[A] 1" in out
    assert "[B]" not in out
    assert "to B]" not in out
    assert "A: reward -1 = score -1" in out
    assert "B: reward 1 = score 1" in out


def test_two_people_can_play_each_other(play, games):
    code, out, _ = play(games, lines="2\n3\n")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith(("[A]", "[B]"))] == ["[A] 2", "[B] 3"]
    assert "B: reward 1 = score 1" in out


def test_everybody_is_seen_where_models_play_each_other(play, games):
    code, out, _ = play(games, "--policy", "gold", "--agents", "A=scripted:random")
    assert code == 0
    assert "[A] " in out
    assert "[B] 3" in out


def test_the_same_flags_play_the_episode_that_eval_plays(play):
    from vime_agents.evaluation.evaluate import env_maker, eval_requests, first_tasks

    make_env = env_maker("cli_envs:Sum", split="test", seed=9)
    *_, fifth = eval_requests(first_tasks(make_env, 5), 1, 9)
    _, by_index, _ = play("cli_envs:Sum", "--seed", "9", "--task", "4", "--policy", "gold")
    _, by_id, _ = play("cli_envs:Sum", "--seed", "9", "--task", fifth.task.id, "--policy", "gold")
    assert by_index == by_id
    assert f"[user] {fifth.task.inputs['a']} + {fifth.task.inputs['b']} = ?" in by_index


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["Calculater-v0"], "Did you mean 'Calculator-v0'?"),
        (["cli_envs:Sum", "--task", "10000"], "--task: no task '10000'"),
        (["cli_envs:Sum", "--task", "x"], "an index from 0 to 9999"),
        (["cli_envs:Sum", "--policy", "silver"], "must be person, scripted:gold"),
        (["cli_envs:Sum", "--agents", "A=gold"], "has one agent"),
        (["cli_envs:Sum", "--splt", "x"], "Did you mean --split?"),
        (["cli_envs:Sum", "--vllm-seed", "1"], "give --seed"),
        (["gymnasium:Env"], "AgentEnv"),
        ([], "--env"),
    ],
)
def test_what_cannot_be_played_is_a_usage_error(play, flags, told):
    code, out, err = play(*flags)
    assert (code, out) == (2, "")
    assert told in err


def test_flags_of_vllm_need_a_model_that_it_serves():
    with pytest.raises(ConfigError, match="only a model vllm:FOLDER starts vLLM"):
        PlayConfig(env="x", vllm={"dtype": "float32"})
