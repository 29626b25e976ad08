"""An environment out of functions: what it plays, how its rows are parted, what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env

import vime_agents as vime
from vime_agents.errors import ConfigError, EnvError
from vime_agents.reward import reward

ROWS = [{"question": f"{a} + {b}", "answer": a + b} for a in range(9) for b in range(9)]

Sums = vime.single_turn(
    "Sums",
    tasks=ROWS,
    prompt="What is {question}?",
    score=lambda text, answer: vime.match_number(text, answer),
    gold="answer",
)


def play(env: vime.AgentEnv, reply: str, task: int = 0) -> Any:
    env.reset(options={"task": task})
    *_, terminated, _, info = env.step(reply)
    assert terminated
    return info["reward_result"]


def test_an_episode_is_a_question_a_reply_and_a_reward() -> None:
    env = Sums(split="test")
    observation, _ = env.reset(options={"task": 0})
    question, answer = env.task["question"], env.task["answer"]
    assert observation["messages"][0]["content"] == f"What is {question}?"
    assert env.gold() == str(sum(map(int, question.split(" + "))))
    result = play(env, f"It is {answer}")
    assert (result.value, result.components) == (1.0, {"score": 1.0})
    assert play(env, f"It is {answer + 1}").value == 0.0


def test_rows_are_parted_and_nothing_is_lost() -> None:
    parts = [Sums(split=split).task_set() for split in ("train", "test")]
    questions = [{part[i].inputs["question"] for i in range(len(part))} for part in parts]
    assert not questions[0] & questions[1]
    assert questions[0] | questions[1] == {row["question"] for row in ROWS}
    assert len(questions[0]) > len(questions[1]) > 0
    with pytest.raises(ConfigError, match="no split 'dev'"):
        Sums(split="dev").task_set()


def test_the_class_is_found_where_it_was_made() -> None:
    assert (Sums.__module__, Sums.__qualname__) == (__name__, "Sums")
    assert pickle.loads(pickle.dumps(Sums)) is Sums
    check_env(Sums(), skip_render_check=True)  # a warning is an error in this test suite


def test_files_are_read_and_folders_have_splits_of_their_own(tmp_path: Path) -> None:
    rows = "".join(f'{{"word": "w{n}"}}\n' for n in range(40))
    (tmp_path / "all.jsonl").write_text(rows)
    splits = tmp_path / "splits"
    splits.mkdir()
    (splits / "train.jsonl").write_text('{"word": "a"}\n')
    (splits / "test.jsonl").write_text('{"word": "b"}\n')
    make = {"prompt": "Say {word}", "score": lambda text, word: text == word, "gold": "word"}
    one_file = vime.single_turn("OneFile", tasks=tmp_path / "all.jsonl", test_share=0.25, **make)
    train, test = (one_file(split=split).task_set() for split in ("train", "test"))
    assert len(train) + len(test) == 40
    folder = vime.single_turn("Folder", tasks=str(splits), **make)
    assert folder(split="test").task_set()[0].inputs["word"] == "b"
    assert play(folder(split="train"), "a").value == 1.0


def test_made_tasks_components_and_functions() -> None:
    @reward
    def right(text: str, n: int) -> bool:
        return text == str(n)

    @reward(weight=0.5, range=(0, 100))
    def length(text: str) -> int:
        return len(text)

    numbers = vime.single_turn(
        "Numbers",
        make_task=lambda rng: {"n": int(rng.integers(10, 100))},
        prompt=lambda task: [
            {"role": "system", "content": "Copy."},
            {"role": "user", "content": str(task["n"])},
        ],
        score=[right, length],
        gold=lambda task: str(task["n"]),
        reward_range=(0.0, 51.0),
    )
    env = numbers(split="test")
    observation, _ = env.reset(options={"task": 3})
    assert [m["role"] for m in observation["messages"]] == ["system", "user"]
    result = play(env, env.gold(), task=3)
    assert (result.value, result.components) == (2.0, {"right": 1.0, "length": 2.0})


def test_what_cannot_be_meant_is_refused() -> None:
    make = {"prompt": "?", "score": lambda text: 0.0}
    with pytest.raises(ConfigError, match="either `tasks` or `make_task`"):
        vime.single_turn("Neither", **make)
    with pytest.raises(ConfigError, match="either `tasks` or `make_task`"):
        vime.single_turn("Both", tasks=ROWS, make_task=lambda rng: {}, **make)
    with pytest.raises(ConfigError, match="'Sums-v0' is no name of a class"):
        vime.single_turn("Sums-v0", tasks=ROWS, **make)
    with pytest.raises(ConfigError, match="test_share"):
        vime.single_turn("Sums", tasks=ROWS, test_share=1.0, **make)
    env = vime.single_turn("Misspelt", tasks=ROWS, prompt="{qestion}", score=lambda text: 0.0)()
    with pytest.raises(EnvError, match="qestion"):
        env.reset(seed=0)
