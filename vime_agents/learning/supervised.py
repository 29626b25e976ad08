"""Conversations that others wrote -> Batches, for learning by likelihood (`--loss-type sft_loss`).

A conversation becomes the tokens that a rollout would have recorded of it: its assistant messages are laid in
where the model would have sampled them, each with its end of turn, and the rest is rendered around them. Only
those tokens are trainable. Where the template does not continue what is there, a new row begins; the earlier
assistant messages are context in it, so that each is learned once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vime_agents.errors import ContractError, DatasetError
from vime_agents.learning.aggregation import loss_weights
from vime_agents.messages import Message, assistant, check_message, user
from vime_agents.rendering.renderer import Renderer
from vime_agents.task import Task
from vime_agents.trainer import Batch, TrainingSample

AGENT = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What to learn from one row of a data set."""

    id: str
    messages: tuple[Message, ...]
    """Those of the assistant are learned, but for those with `step_loss_mask` 0."""
    tools: tuple[dict[str, Any], ...] = ()
    """Schemas, as the prompt announces them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRow:
    """Tokens of a conversation, in one row."""

    token_ids: NDArray[np.int32]
    """[num_tokens]"""
    loss_mask: NDArray[np.bool_]
    """[num_tokens]"""


def conversation_of(task: Task, *, tool_key: str | None = None) -> Conversation:
    """`prompt` of the task: a whole conversation, or with a `label` what that is the reply to.

    Args:
        task: its prompt is text, as from a user, or messages; its label, if any, is the assistant's text.
        tool_key: key of the tools' schemas in the task's inputs.

    Raises:
        DatasetError: naming the row and what is wrong with it.
    """
    prompt, where = task.inputs["prompt"], f"--prompt-data: row {task.id!r}"
    if isinstance(prompt, str):
        messages: list[Any] = [user(prompt)]
    elif isinstance(prompt, Sequence):
        messages = [_plain(m) for m in prompt]
    else:
        raise DatasetError(f"{where}: the prompt must be text or a list of messages, got {prompt!r:.200}")
    if "label" in task.inputs:
        if not isinstance(task.inputs["label"], str):
            raise DatasetError(f"{where}: the label must be text, got {task.inputs['label']!r:.200}")
        messages.append(assistant(task.inputs["label"]))
    tools = (task.inputs.get(tool_key) or ()) if tool_key is not None else ()
    try:
        checked = tuple(check_message(m) for m in messages)
    except ContractError as error:
        raise DatasetError(f"{where}: {error}") from error
    if not any(_is_learned(m) for m in checked):
        raise DatasetError(
            f"{where}: no assistant message to learn; give messages with one, or name the key of the reply "
            "with --label-key"
        )
    return Conversation(id=task.id, messages=checked, tools=tuple(dict(t) for t in tools))


def _plain(message: Any) -> Any:
    """Columns of a table have nulls where a message lacks a key; content beside tool calls may be one."""
    if not isinstance(message, Mapping):
        return message
    known = {key: value for key, value in message.items() if value is not None}
    return {"content": ""} | known if known.get("tool_calls") else known


def _is_learned(message: Message) -> bool:
    return message["role"] == "assistant" and bool(message.get("step_loss_mask", 1))


def token_rows(conversation: Conversation, renderer: Renderer) -> list[TokenRow]:
    """The rows of a conversation: one, unless the template rewrites what came before.

    Raises:
        DatasetError: the conversation begins with a reply.
        ConfigError: the renderer cannot write replies.
    """
    messages, tools = conversation.messages, conversation.tools
    rows: list[TokenRow] = []
    ids: list[int] = []
    mask: list[bool] = []
    done = 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        new = renderer.extend(ids, messages[done:index], tools) if ids else None
        if new is None:
            rows += _row(ids, mask)
            ids, mask = [], []
            new = renderer.initial(messages[:index], tools) if index else []
        ids += [i for piece in new for i in piece.token_ids]
        if not ids:
            raise DatasetError(f"--prompt-data: row {conversation.id!r}: there is nothing before the reply")
        mask += [False] * (len(ids) - len(mask))
        ids += renderer.written(messages[: index + 1], tools)
        mask += [_is_learned(message)] * (len(ids) - len(mask))
        done = index + 1
    return rows + _row(ids, mask)


def _row(ids: Sequence[int], mask: Sequence[bool]) -> list[TokenRow]:
    """The row, if it has anything to learn."""
    if not any(mask):
        return []
    return [TokenRow(token_ids=np.asarray(ids, np.int32), loss_mask=np.asarray(mask, np.bool_))]


def supervised_batches(
    conversations: Sequence[Conversation],
    renderer: Renderer,
    *,
    num_steps: int = 1,
    max_tokens: int,
    on_excess: Literal["error", "truncate", "drop"] = "error",
    aggregation: str = "token-mean",
    norm_length: int | None = None,
) -> list[Batch]:
    """What `num_steps` optimizer steps consume: the conversations in order, shared out evenly.

    Args:
        conversations: their ids differ.
        renderer: of the model that learns.
        num_steps: at most as many as there are conversations.
        max_tokens: of a row.
        on_excess: what happens to a longer row: it is refused, cut off there, or left out and counted.
        aggregation: see `vime_agents.learning.aggregation`; an episode and a group are a conversation here.
        norm_length: of the aggregation seq-mean-token-sum-norm.

    Raises:
        DatasetError: a conversation cannot be rendered, or has a row that is too long.
    """
    whole = {c.id: token_rows(c, renderer) for c in conversations}
    long = [(name, row) for name, found in whole.items() for row in found if len(row.token_ids) > max_tokens]
    if long and on_excess == "error":
        name, row = long[0]
        raise DatasetError(
            f"--prompt-data: row {name!r} has {len(row.token_ids)} tokens, but --rollout-max-context-len "
            f"allows {max_tokens}: raise it, or say by --oversized-rows truncate or drop what happens to it"
        )
    keep = max_tokens if on_excess == "truncate" else 0
    rows = {
        name: [r for row in found for r in _within(row, max_tokens, keep)] for name, found in whole.items()
    }
    metrics = _metrics(conversations, whole, rows) | {"rows_oversized": float(len(long))}
    batches = []
    for part in np.array_split(np.arange(len(conversations)), num_steps):
        names = [conversations[i].id for i in part]
        flat = [(name, index, row) for name in names for index, row in enumerate(rows[name])]
        owners = [name for name, _, _ in flat]
        masks = [row.loss_mask for _, _, row in flat]
        weights = loss_weights(masks, owners, aggregation, group_ids=owners, norm_length=norm_length)
        samples = tuple(
            _sample(name, index, row, weight)
            for (name, index, row), weight in zip(flat, weights, strict=True)
        )
        # At temperature 1 the likelihood is that of the model itself.
        batches.append(Batch(samples=samples, temperature=1.0, metrics=metrics))
    return batches


def _within(row: TokenRow, max_tokens: int, keep: int) -> list[TokenRow]:
    """The row, or its first `keep` tokens where it is too long."""
    if len(row.token_ids) <= max_tokens:
        return [row]
    return _row(row.token_ids[:keep].tolist(), row.loss_mask[:keep].tolist())


def _metrics(
    conversations: Sequence[Conversation],
    whole: Mapping[str, Sequence[TokenRow]],
    rows: Mapping[str, Sequence[TokenRow]],
) -> dict[str, float]:
    every = [row for found in rows.values() for row in found]
    trained = sum(int(row.loss_mask.sum()) for row in every)
    wanted = sum(int(row.loss_mask.sum()) for found in whole.values() for row in found)
    return {
        "conversations": float(len(conversations)),
        "rows": float(len(every)),
        "tokens_in_rows": float(sum(len(row.token_ids) for row in every)),
        "tokens_trained": float(trained),
        "tokens_lost_to_row_limit": float(wanted - trained),
    }


def _sample(name: str, index: int, row: TokenRow, weights: NDArray[np.float32]) -> TrainingSample:
    size = len(row.token_ids)
    return TrainingSample(
        id=f"{name}/{AGENT}/{index}",
        episode_id=name,
        group_id=name,
        agent=AGENT,
        token_ids=row.token_ids,
        loss_mask=row.loss_mask,
        rollout_logprobs=np.full(size, np.nan, np.float32),
        advantages=np.zeros(size, np.float32),
        weights=weights,
        weight_versions=np.full(size, -1, np.int32),
    )
