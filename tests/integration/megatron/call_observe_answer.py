"""A tool-use task that a model of 100 000 parameters learns from scratch in minutes.

An episode: `[BOS key]`, the policy samples three tokens (right: `CALL key END`), the env answers
`[OBS value]` with the value that its table holds for the *sampled* key, the policy samples three more
(right: `ANS value END`). Every group has a table of its own, so the value comes from the observation alone:
a policy that cannot see it stops at a reward of 0.6. Chance gives 0.02; 0.4 is the form alone.

Runs as a process of its own: `python call_observe_answer.py <variant> <seed> <max updates>` prints one JSON
line. Everything between sampling and the optimizer is the real path: token log, episode, batch, trainer.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

BOS, CALL, ANS, END, OBS = range(1, 6)
NUM_KEYS = 10
FIRST_KEY = 6
FIRST_VALUE = FIRST_KEY + NUM_KEYS
VOCAB_SIZE = FIRST_VALUE + NUM_KEYS
NUM_GROUPS, GROUP_SIZE = 16, 8
EVALUATE_EVERY, NUM_EVALUATED = 25, 512
Predict = Callable[[np.ndarray], Any]
"""Rows [num_rows, length] -> a torch tensor [num_rows, vocabulary] of log-probs of what follows."""


@dataclass(frozen=True)
class Played:
    """One finished episode."""

    key: int
    calls: list[int]
    value: int
    answers: list[int]
    logprobs: list[float]

    @property
    def reward(self) -> float:
        """0.1 for each right format token, 0.2 for the key, 0.4 for everything right."""
        form = (self.calls[0] == CALL) + (self.calls[2] == END)
        form += (self.answers[0] == ANS) + (self.answers[2] == END)
        return 0.1 * form + 0.2 * (self.calls[1] == self.key) + 0.4 * self.success

    @property
    def success(self) -> bool:
        return self.calls == [CALL, self.key, END] and self.answers == [ANS, self.value, END]


def make_model(folder: Path, seed: int) -> None:
    """A Qwen2 of two layers.

    Weights as large as PyTorch's own layers begin with (three times that for the layers' matrices): with the
    0.02 of large models attention starts too even to pick out one token, and the key is not found in time.
    """
    import torch
    import transformers

    config = transformers.Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=16,
        rope_parameters={"rope_type": "default", "rope_theta": 10.0},
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = transformers.Qwen2ForCausalLM(config)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            module.reset_parameters()
            if "layers" in name:
                module.weight.data *= 3
    model.save_pretrained(folder)


def next_log_probs(trainer: Any, rows: np.ndarray) -> Any:
    """Log-probs of what follows each row [num_rows, length], by the trainer's model."""
    import torch

    from vime_trainers.batching.pack import pack
    from vime_trainers.batching.rows import rows_of_tokens
    from vime_trainers.megatron.device import cpu_compat, device
    from vime_trainers.megatron.micro_batches import packed_rows

    # `rows_of_tokens` leaves out the last token, which predicts nothing there; here it is what predicts.
    table = rows_of_tokens(np.concatenate([rows, np.zeros_like(rows[:, :1])], axis=1))
    micro = pack(table, device=device())
    with cpu_compat():
        hidden = trainer.model(
            input_ids=micro.input_ids,
            position_ids=None,
            attention_mask=None,
            packed_seq_params=packed_rows(micro, 1),
        )
        last = hidden.view(*rows.shape, -1)[:, -1]
        return torch.log_softmax(last @ trainer.model.output_weight().T, -1)


def sample_three(predict: Predict, rows: np.ndarray, *, greedy: bool) -> tuple[np.ndarray, np.ndarray]:
    """Three tokens after each row [num_rows, length], and their log-probs."""
    import torch

    sampled, logprobs = [], []
    for _ in range(3):
        with torch.no_grad():
            table = predict(rows)
            chosen = table.argmax(-1, keepdim=True) if greedy else torch.multinomial(table.exp(), 1)
        logprobs.append(table.gather(1, chosen).numpy())
        sampled.append(chosen.numpy().astype(np.int32))
        rows = np.concatenate([rows, sampled[-1]], axis=1)
    return np.concatenate(sampled, axis=1), np.concatenate(logprobs, axis=1)


def play(predict: Predict, keys: np.ndarray, tables: np.ndarray, *, greedy: bool) -> list[Played]:
    """One episode for each key, with its own table."""
    count = len(keys)
    rows = np.stack([np.full(count, BOS), keys], axis=1).astype(np.int32)
    calls, first = sample_three(predict, rows, greedy=greedy)
    asked = calls[:, 1] - FIRST_KEY
    known = (asked >= 0) & (asked < NUM_KEYS)
    values = np.where(known, tables[np.arange(count), asked.clip(0, NUM_KEYS - 1)], OBS)
    observation = np.stack([np.full(count, OBS), values], axis=1).astype(np.int32)
    answers, second = sample_three(predict, np.concatenate([rows, calls, observation], axis=1), greedy=greedy)
    logprobs = np.concatenate([first, second], axis=1)
    return [
        Played(int(k), c.tolist(), int(v), a.tolist(), lp.tolist())
        for k, c, v, a, lp in zip(keys, calls, values, answers, logprobs, strict=True)
    ]


def to_episode(played: Played, index: int, version: int, reward: float) -> Any:
    from vime_agents.episode import Episode, Outcome, RewardResult, Trajectory, Turn
    from vime_agents.token_log import Piece, TokenLog

    log = TokenLog()
    log.record_prompt([Piece(token_ids=(BOS, played.key), source="user")], turn=0)
    log.append_sampled(_sampled(played.calls, played.logprobs[:3], version), turn=0)
    log.extend([Piece(token_ids=(OBS, played.value), source="tool")], turn=1)
    log.append_sampled(_sampled(played.answers, played.logprobs[3:], version), turn=1)
    turns = tuple(
        Turn(
            index=turn,
            messages=(),
            reply={"role": "assistant", "content": ""},
            finish_reason="length",
            num_prompt_tokens=None,
            num_sampled_tokens=3,
            policy_s=0.0,
            env_s=0.0,
        )
        for turn in range(2)
    )
    trajectory = Trajectory(
        agent="agent",
        policy="trained",
        turns=turns,
        segments=log.segments(),
        reward=RewardResult(value=reward),
    )
    return Episode(
        id=f"v{version}-e{index:03}",
        env_id="CallObserveAnswer",
        task_id=str(played.key),
        group_id=f"v{version}-g{index // GROUP_SIZE}",
        seed=0,
        outcome=Outcome(kind="terminated", stop="done"),
        trajectories=(trajectory,),
        started_at=0.0,
        duration_s=0.0,
    )


def _sampled(token_ids: list[int], logprobs: list[float], version: int) -> Any:
    from vime_agents.token_log import SampledTokens

    return SampledTokens(
        token_ids=tuple(token_ids), logprobs=tuple(logprobs), versions=((version, 0, len(token_ids)),)
    )


def invert_mask(batch: Any) -> Any:
    """Train on what nobody sampled: the prompt's key and the observation."""
    samples = []
    for sample in batch.samples:
        mask = ~sample.loss_mask
        mask[0] = False
        advantage, weight = sample.advantages.max() + sample.advantages.min(), sample.weights.max()
        samples.append(
            replace(
                sample,
                loss_mask=mask,
                rollout_logprobs=np.where(mask, -1.0, np.nan).astype(np.float32),
                advantages=np.where(mask, advantage, 0).astype(np.float32),
                weights=np.where(mask, weight, 0).astype(np.float32),
            )
        )
    return replace(batch, samples=tuple(samples))


def draw_tasks(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    keys = rng.integers(FIRST_KEY, FIRST_KEY + NUM_KEYS, count)
    return keys, rng.integers(FIRST_VALUE, FIRST_VALUE + NUM_KEYS, (count, NUM_KEYS))


def learn(variant: str, seed: int, max_updates: int, folder: Path) -> dict[str, Any]:
    import torch

    from vime_agents.learning.advantages import dr_grpo
    from vime_agents.learning.samples import build_batch
    from vime_trainers.losses.config import LossConfig
    from vime_trainers.megatron.config import MegatronConfig
    from vime_trainers.megatron.trainer import MegatronTrainer

    make_model(folder, seed)
    loss = LossConfig(entropy_coef=0.01)
    trainer = MegatronTrainer(
        MegatronConfig(
            hf_checkpoint=str(folder), lr=1.25e-3, adam_beta2=0.95, clip_grad=1.0, seed=seed, loss=loss
        )
    )
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    predict = partial(next_log_probs, trainer)
    rewards, worst_gap, success = [], 0.0, 0.0
    while trainer.version < max_updates and success < 0.98:
        keys, tables = (x.repeat(GROUP_SIZE, axis=0) for x in draw_tasks(rng, NUM_GROUPS))
        played = play(predict, keys, tables, greedy=False)
        earned = np.array([p.reward for p in played])
        rewards.append(float(earned.mean()))
        given = rng.permutation(earned) if variant == "shuffled-rewards" else earned
        episodes = [
            to_episode(p, i, trainer.version, float(r))
            for i, (p, r) in enumerate(zip(played, given, strict=True))
        ]
        # Rows without an advantage still carry the entropy bonus, which keeps the policy trying other keys.
        batch = build_batch(episodes, estimator=dr_grpo, temperature=1.0, keep_zero_advantage=True)
        metrics = trainer.update(invert_mask(batch) if variant == "inverted-mask" else batch)
        if variant != "inverted-mask":
            worst_gap = max(worst_gap, metrics.get("max_rollout_train_logprob_diff", 0.0))
        if trainer.version % EVALUATE_EVERY == 0:
            fresh = play(predict, *draw_tasks(rng, NUM_EVALUATED), greedy=True)
            success = float(np.mean([p.success for p in fresh]))
    trainer.close()
    return {
        "updates": trainer.version,
        "success": success,
        "rewards": rewards,
        "num_parameters": sum(p.numel() for p in trainer.model.parameters()),
        "max_rollout_train_logprob_diff": worst_gap,
    }


def main() -> None:
    variant, seed, max_updates = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(json.dumps(learn(variant, seed, max_updates, Path(folder))) + "\n")


if __name__ == "__main__":
    main()
