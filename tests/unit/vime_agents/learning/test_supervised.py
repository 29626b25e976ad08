"""Conversations become the rows that a rollout would have recorded, with the assistant's tokens trainable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vime_agents.errors import ConfigError, DatasetError
from vime_agents.learning.supervised import (
    Conversation,
    TokenRow,
    conversation_of,
    supervised_batches,
    token_rows,
)
from vime_agents.messages import Message, assistant, system, tool_call, tool_result, user
from vime_agents.rendering.chat_template import ChatTemplateRenderer
from vime_agents.rendering.load import make_renderer
from vime_agents.rendering.tokenizer import load_tokenizer
from vime_agents.task import Task
from vime_trainers.models.tiny import ensure_tiny_qwen3

FOLDER = str(ensure_tiny_qwen3())
TOKENIZER = load_tokenizer(FOLDER)
TOOLS = ({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},)
CALL = tool_call("add", {"a": 1, "b": 2}, "call_0")
DIALOGUE: tuple[Message, ...] = (
    system("Be brief."),
    user("1 + 2?"),
    assistant("", [CALL]),
    tool_result("3", CALL),
    assistant("It is 3."),
    user("thanks"),
)


def trained_texts(row: TokenRow) -> list[str]:
    """The runs of trainable tokens, as text."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.loss_mask.astype(int), [0]])))
    return [TOKENIZER.decode(row.token_ids[a:b]) for a, b in edges.reshape(-1, 2)]


TURNS = [
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>',
    "It is 3.<|im_end|>",
]


def test_exactly_the_assistants_turns_are_trained_and_the_row_is_the_templates() -> None:
    """Pitfalls 39 and 40: the end of turn is trained, nothing of tools is."""
    (row,) = token_rows(Conversation(id="a", messages=DIALOGUE, tools=TOOLS), make_renderer(FOLDER))
    assert trained_texts(row) == TURNS
    parsed = assistant("", [CALL | {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}])  # type: ignore[typeddict-item, list-item]
    plain = [dict(m) for m in (*DIALOGUE[:2], parsed, *DIALOGUE[3:5])]
    whole = TOKENIZER.apply_chat_template(plain, tools=list(TOOLS), tokenize=False)
    assert TOKENIZER.decode(row.token_ids) == whole.rstrip("\n")
    again = TOKENIZER(whole, add_special_tokens=False)["input_ids"]
    assert row.token_ids.tolist() == again[: len(row.token_ids)]


def test_a_packaged_renderer_has_the_model_answer_without_thinking() -> None:
    renderer = make_renderer(FOLDER, renderer="qwen3")
    (row,) = token_rows(Conversation(id="a", messages=DIALOGUE, tools=TOOLS), renderer)
    thoughtless = "<think>\n\n</think>\n\n"
    assert trained_texts(row) == [thoughtless + turn for turn in TURNS]


def test_a_message_can_be_left_out_of_the_loss() -> None:
    silent: Any = assistant("It is 3.") | {"step_loss_mask": 0}
    messages = (*DIALOGUE[:4], silent)
    (row,) = token_rows(Conversation(id="a", messages=messages), make_renderer(FOLDER))
    assert len(trained_texts(row)) == 1
    assert TOKENIZER.decode(row.token_ids).endswith("It is 3.<|im_end|>")


def test_a_template_that_rewrites_history_makes_rows_in_which_each_turn_is_trained_once() -> None:
    """Pitfalls 37 and 46: no row has tokens that the model would not see, no span is in two losses."""
    tokenizer = load_tokenizer(FOLDER)
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content }}{% if m.role == 'assistant' and not loop.last %} (old){% endif %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    messages = (user("a"), assistant("b"), user("c"), assistant("d"))
    rows = token_rows(Conversation(id="a", messages=messages), ChatTemplateRenderer(tokenizer))
    assert [trained_texts(r) for r in rows] == [["b<|im_end|>"], ["d<|im_end|>"]]
    assert "b (old)<|im_end|>" in TOKENIZER.decode(rows[1].token_ids)


def test_plain_text_is_prompt_reply_and_end_of_text() -> None:
    conversation = conversation_of(Task(id="a", inputs={"prompt": "2+2=", "label": "4"}))
    (row,) = token_rows(conversation, make_renderer(FOLDER, prompt_style="text"))
    assert trained_texts(row) == ["4" + TOKENIZER.eos_token]
    assert TOKENIZER.decode(row.token_ids) == "2+2=4" + TOKENIZER.eos_token


def test_steps_share_out_the_conversations_and_each_has_weights_of_its_own() -> None:
    conversations = [
        Conversation(id=str(n), messages=(user("x"), assistant("word " * n))) for n in range(1, 6)
    ]
    first, second = supervised_batches(
        conversations, make_renderer(FOLDER), num_steps=2, max_tokens=64, aggregation="seq-mean-token-mean"
    )
    assert [s.episode_id for s in first.samples] == ["1", "2", "3"]
    assert [s.episode_id for s in second.samples] == ["4", "5"]
    for sample in second.samples:
        share = 1 / (2 * sample.loss_mask.sum())
        np.testing.assert_allclose(sample.weights[sample.loss_mask], share, rtol=1e-6)
        assert np.isnan(sample.rollout_logprobs).all()
        assert (sample.weight_versions == -1).all()
    assert first.temperature == second.temperature == 1.0
    assert first.metrics["tokens_trained"] == first.num_trainable + second.num_trainable
    assert first.metrics["conversations"] == first.metrics["rows"] == 5


def test_what_openai_leaves_empty_is_read() -> None:
    given = {"prompt": [dict(user("x")), {"role": "assistant", "content": None, "tool_calls": [CALL]}]}
    conversation = conversation_of(Task(id="a", inputs=given | {"t": list(TOOLS)}), tool_key="t")
    assert conversation.messages[1] == assistant("", [CALL])
    assert conversation.tools == TOOLS


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"prompt": "x"}, "no assistant message to learn"),
        ({"prompt": [dict(assistant("x")) | {"step_loss_mask": 0}]}, "no assistant message to learn"),
        ({"prompt": 3}, "text or a list of messages"),
        ({"prompt": ["x"]}, "a message is a dict"),
        ({"prompt": "x", "label": 4}, "the label must be text"),
        ({"prompt": [{"role": "robot", "content": "x"}]}, "message role"),
    ],
)
def test_a_row_that_is_no_conversation_is_named(inputs: dict[str, Any], told: str) -> None:
    with pytest.raises(DatasetError, match=f"row 'r7'.*{told}"):
        conversation_of(Task(id="r7", inputs=inputs))


def test_a_reply_to_nothing_and_a_row_that_is_too_long_are_named() -> None:
    renderer = make_renderer(FOLDER, prompt_style="text")
    with pytest.raises(DatasetError, match="row 'a': there is nothing before the reply"):
        token_rows(Conversation(id="a", messages=(assistant("x"),)), renderer)
    long = Conversation(id="b", messages=(user("x" * 40), assistant("y")))
    with pytest.raises(DatasetError, match=r"row 'b' has \d+ tokens.*--rollout-max-context-len allows 8"):
        supervised_batches([long], renderer, max_tokens=8)


def test_what_is_too_long_is_cut_or_dropped_and_counted() -> None:
    renderer = make_renderer(FOLDER, prompt_style="text")
    short = Conversation(id="a", messages=(user("x"), assistant("yz")))
    long = Conversation(id="b", messages=(user("x"), assistant("y" * 40)))
    sizes = [len(token_rows(c, renderer)[0].token_ids) for c in (short, long)]
    limit = sizes[0]
    assert sizes[1] > limit
    (cut,) = supervised_batches([short, long], renderer, max_tokens=limit, on_excess="truncate")
    assert [len(s) for s in cut.samples] == [limit, limit]
    (dropped,) = supervised_batches([short, long], renderer, max_tokens=limit, on_excess="drop")
    assert [s.episode_id for s in dropped.samples] == ["a"]
    for batch, lost in ((cut, sizes[1] - limit), (dropped, sizes[1] - 1)):
        assert batch.metrics["rows_oversized"] == 1
        assert batch.metrics["tokens_lost_to_row_limit"] == lost
        assert batch.num_trainable == batch.metrics["tokens_trained"]
        assert sum(float(s.weights.sum()) for s in batch.samples) == pytest.approx(1)


def test_a_template_that_does_not_continue_its_own_prompt_is_refused() -> None:
    tokenizer = load_tokenizer(FOLDER)
    tokenizer.chat_template = (
        "{{ messages | length }}{% for m in messages %}{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    with pytest.raises(ConfigError, match="chat template does not write a turn"):
        ChatTemplateRenderer(tokenizer).written((user("a"), assistant("b")), ())
