"""The learning rate of each optimizer step, against its closed form."""

import math
from types import SimpleNamespace

import pytest

from vime_agents.errors import CheckpointError, ConfigError
from vime_trainers.megatron.config import MegatronConfig
from vime_trainers.megatron.optimizer import Schedule

LR, LOW, WARMUP, END = 0.5, 0.1, 4, 12


def config(**settings) -> MegatronConfig:
    values = {"lr": LR, "lr_warmup_iters": WARMUP, "weight_decay": 0.3} | settings
    return MegatronConfig(hf_checkpoint="m", **values)


def schedule(**settings) -> tuple[Schedule, list[dict]]:
    """A schedule, and the parameter groups of a matrix and of a norm that it sets."""
    groups = [{"max_lr": LR, "min_lr": settings.get("min_lr", 0.0), "wd_mult": m} for m in (1.0, 0.0)]
    return Schedule(config(**settings), SimpleNamespace(param_groups=groups)), groups


def rates(count: int, **settings) -> list[float]:
    found, groups = schedule(**settings)
    out = []
    for _ in range(count):
        found.advance()
        assert found.rate == groups[0]["lr"] == groups[1]["lr"]
        out.append(found.rate)
    return out


def closed_form(style: str, n: int) -> float:
    if n <= WARMUP:
        return LR * n / WARMUP
    done = (n - WARMUP) / (END - WARMUP)
    if n > END:
        return LOW
    return {
        "linear": LOW + (LR - LOW) * (1 - done),
        "cosine": LOW + (LR - LOW) * (1 + math.cos(math.pi * done)) / 2,
        "inverse-square-root": LR * math.sqrt(WARMUP / n),
    }[style]


@pytest.mark.parametrize("style", ["linear", "cosine", "inverse-square-root"])
def test_the_rate_rises_then_falls_then_stays(style):
    expected = [closed_form(style, n) for n in range(1, 16)]
    found = rates(15, lr_decay_style=style, lr_decay_iters=END, min_lr=LOW)
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_constant_rate_stays_for_ever_after_its_warm_up():
    assert rates(100)[:5] == [LR / 4, LR / 2, LR * 3 / 4, LR, LR]
    assert set(rates(100)[4:]) == {LR}
    assert set(rates(3, lr_warmup_iters=0)) == {LR}


def test_only_what_has_weight_decay_gets_it():
    found, groups = schedule()
    found.advance()
    assert [g["weight_decay"] for g in groups] == [0.3, 0.0]


def test_a_resumed_schedule_goes_on_where_the_saved_one_was():
    settings = {"lr_decay_style": "cosine", "lr_decay_iters": END}
    whole = rates(10, **settings)
    saved, _ = schedule(**settings)
    for _ in range(6):
        saved.advance()
    resumed, groups = schedule(**settings)
    resumed.load_state_dict(saved.state_dict())
    assert groups[0]["lr"] == whole[5]
    found = []
    for _ in range(4):
        resumed.advance()
        found.append(groups[0]["lr"])
    assert found == whole[6:]


def test_another_schedule_than_the_checkpoints_is_refused():
    saved, _ = schedule(lr_decay_style="cosine", lr_decay_iters=END)
    other, _ = schedule(lr_decay_style="cosine", lr_decay_iters=END + 1)
    with pytest.raises(CheckpointError, match=r"lr_decay_steps 12 -> 13.*--lr-decay-iters"):
        other.load_state_dict(saved.state_dict())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"min_lr": 1.0}, "--min-lr 1.0"),
        ({"min_lr": 0.1}, "constant rate"),
        ({"lr_decay_iters": 9}, "constant rate"),
        ({"lr_decay_style": "cosine"}, "--lr-decay-iters None"),
        ({"lr_decay_style": "linear", "lr_decay_iters": WARMUP}, "--lr-decay-iters 4"),
        ({"lr_decay_style": "sine", "lr_decay_iters": 9}, "--lr-decay-style 'sine'"),
        ({"lr_warmup_iters": -1}, "--lr-warmup-iters -1"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_flag(settings, told):
    with pytest.raises(ConfigError, match=told):
        config(**settings)
