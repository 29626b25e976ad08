"""Adapters and lists of trained weights against plain torch, alone and split over two ranks in every way."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.integration.megatron import oracle, trainable_worker
from tests.integration.megatron.ranks import run_ranks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ALONE = {"alone": {"recompute_granularity": "full", "resume_as": {}}}
TWO = {
    "dp2-distributed-optimizer": {"use_distributed_optimizer": True},
    "tp2": {"tensor_model_parallel_size": 2},
    "tp2-sequence-parallel": {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "resume_as": {
            "tensor_model_parallel_size": 1,
            "sequence_parallel": False,
            "pipeline_model_parallel_size": 2,
        },
    },
    "pp2": {"pipeline_model_parallel_size": 2},
    "cp2": {"context_parallel_size": 2, "max_tokens_per_gpu": 32},
}
LAYOUTS = [*ALONE, *TWO]
ADAPTERS = {"all": trainable_worker.ADAPTERS, "some": trainable_worker.SOME}


class Runs:
    """What the workers found; they are started on first use."""

    def __init__(self, root: Path) -> None:
        self.model, self.root = root / "model", root
        oracle.make_model("qwen3", self.model)

    @functools.cache  # noqa: B019
    def started(self, num_ranks: int) -> Path:
        output = self.root / f"ranks-{num_ranks}"
        output.mkdir()
        run_ranks(num_ranks, "trainable_worker.py", [self.model], output, ALONE if num_ranks == 1 else TWO)
        return output

    def found(self, name: str) -> dict[str, Any]:
        return torch.load(self.started(1 if name in ALONE else 2) / f"{name}.pt", weights_only=False)

    def adapter(self, name: str, which: str, when: str) -> dict[str, torch.Tensor]:
        folder = self.started(1 if name in ALONE else 2) / f"{name}-{which}" / when
        return load_file(folder / "adapter_model.safetensors")

    @functools.cache  # noqa: B019
    def oracle(self, which: str) -> dict[str, Any]:
        return train_adapters(self.model, self.adapter("alone", which, "first"), ADAPTERS[which])

    @functools.cache  # noqa: B019
    def listed(self, which: str) -> dict[str, Any]:
        model = oracle.load(self.model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_trained(which, name))
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        steps = steps_of(trained, lambda: oracle.loss(model, oracle.make_batch(9)), 2)
        return {"steps": steps, "after": dict(model.state_dict())}


def is_trained(which: str, name: str) -> bool:
    if which == "one-layer":
        return "layers.1.mlp" in name
    return "norm." not in name and "embed" not in name and "lm_head" not in name


def steps_of(
    trained: dict[str, torch.Tensor], loss: Callable[[], torch.Tensor], count: int
) -> list[tuple[float, float]]:
    """Loss and gradient norm of each AdamW step."""
    groups = [
        {"params": [p for p in trained.values() if p.ndim > 1], "weight_decay": oracle.WEIGHT_DECAY},
        {"params": [p for p in trained.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=oracle.LR, eps=oracle.ADAM_EPS, betas=(0.9, 0.999))
    found = []
    for _ in range(count):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), oracle.CLIP_GRAD)
        optimizer.step()
        found.append((value.item(), norm.item()))
    return found


def train_adapters(folder: Path, first: dict[str, torch.Tensor], settings: dict[str, Any]) -> dict[str, Any]:
    """Three steps from the adapters in `first`, the sum `W + (alpha / rank) B A` put in for each weight."""
    model = oracle.load(folder).requires_grad_(False)
    adapters = {name: value.clone().requires_grad_() for name, value in first.items()}
    scale = settings["alpha"] / settings["rank"]

    def whole() -> dict[str, torch.Tensor]:
        weights = {}
        for name, a in adapters.items():
            if name.endswith("lora_A.weight"):
                b = adapters[name.replace("lora_A", "lora_B")]
                key = name.removeprefix("base_model.model.").replace("lora_A.", "")
                weights[key] = model.get_parameter(key) + scale * b @ a
        return weights

    def forward(ids: torch.Tensor, **settings: Any) -> Any:
        return SimpleNamespace(logits=torch.func.functional_call(model, whole(), (ids,), settings).logits)

    batch = oracle.make_batch(9)
    steps = steps_of(adapters, lambda: oracle.loss(forward, batch), 3)  # type: ignore[arg-type]
    with torch.no_grad():
        logprobs = [
            oracle.log_softmax(forward, s.token_ids, oracle.TEMPERATURE)  # type: ignore[arg-type]
            .gather(1, torch.from_numpy(s.token_ids[1:].astype(np.int64))[:, None])[:, 0]
            .numpy()
            for s in batch.samples
        ]
        return {"steps": steps, "after": whole(), "adapters": adapters, "logprobs": logprobs}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("trainable"))


def worst(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    return max(((found[n] - e.detach()).norm() / e.norm()).item() for n, e in expected.items() if e.any())


@pytest.mark.parametrize("which", ADAPTERS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_new_adapters_change_nothing_and_are_the_same_on_every_layout(runs, name, which):
    stored = load_file(runs.model / "model.safetensors")
    for key, value in stored.items():
        assert torch.equal(runs.found(name)[which]["before"][key], value), key
    first, alone = runs.adapter(name, which, "first"), runs.adapter("alone", which, "first")
    assert first.keys() == alone.keys()
    assert all(torch.equal(first[key], alone[key]) for key in first)
    modules = ADAPTERS[which].get("target_modules", range(7))
    assert len(first) == 2 * 2 * len(modules)  # A and B of two layers


@pytest.mark.parametrize("which", ADAPTERS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_three_updates_of_adapters_are_those_of_plain_torch(runs, name, which):
    found, expected = runs.found(name)[which], runs.oracle(which)
    losses, norms = zip(*expected["steps"], strict=True)
    assert [m["loss"] for m in found["metrics"]] == pytest.approx(losses, rel=1e-5)
    assert [m["grad_norm"] for m in found["metrics"]] == pytest.approx(norms, rel=1e-4)
    last = runs.adapter(name, which, "last")
    assert worst(last, expected["adapters"]) < 1e-4
    moved = runs.adapter(name, which, "first")
    assert all((last[key] - moved[key]).abs().max() > 1e-5 for key in last)
    for values, wanted in zip(found["logprobs"], expected["logprobs"], strict=True):
        np.testing.assert_allclose(values[1:], wanted, atol=5e-5, rtol=0)


@pytest.mark.parametrize("which", ADAPTERS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_engines_get_is_the_sum_and_everything_else_stays_to_the_bit(runs, name, which):
    found, expected = runs.found(name)[which], runs.oracle(which)["after"]
    changed = {key for key in found["after"] if not torch.equal(found["after"][key], found["before"][key])}
    targets = ADAPTERS[which].get("target_modules", ("_proj",))
    assert changed == {key for key in found["after"] if any(target in key for target in targets)}
    assert changed == expected.keys()
    assert worst(found["after"], expected) < 1e-5


def test_the_adapters_say_what_they_belong_to(runs):
    folder = runs.started(1) / "alone-some" / "last"
    described = json.loads((folder / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == str(runs.model)
    assert (described["r"], described["lora_alpha"]) == (2, 2.0)
    assert described["target_modules"] == ["down_proj", "v_proj"]


@pytest.mark.parametrize("name", ["alone", "tp2-sequence-parallel"])
def test_resumed_adapters_go_on_as_those_that_were_saved(runs, name):
    found = runs.found(name)["resumed"]
    for went_on, again in zip(found["went_on"], found["again"], strict=True):
        if name == "alone":
            assert (again["loss"], again["grad_norm"]) == (went_on["loss"], went_on["grad_norm"])
        else:  # read under another layout: other order of additions
            assert again["loss"] == pytest.approx(went_on["loss"], rel=1e-5)
            assert again["grad_norm"] == pytest.approx(went_on["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("which", trainable_worker.LISTS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_only_what_the_lists_say_is_trained(runs, name, which):
    found, expected = runs.found(name)["lists"][which], runs.listed(which)
    losses, norms = zip(*expected["steps"], strict=True)
    assert [m["loss"] for m in found["metrics"]] == pytest.approx(losses, rel=1e-5)
    assert [m["grad_norm"] for m in found["metrics"]] == pytest.approx(norms, rel=1e-4)
    stored = load_file(runs.model / "model.safetensors")
    for key, value in stored.items():
        if is_trained(which, key):
            assert not torch.equal(found["after"][key], value), key
        else:
            assert torch.equal(found["after"][key], value), key
    trained = {k: v for k, v in expected["after"].items() if k in stored and is_trained(which, k)}
    assert worst(found["after"], trained) < 1e-5
