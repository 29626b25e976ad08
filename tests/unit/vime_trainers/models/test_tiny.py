"""The tiny model is complete, deterministic, and its tokenizer loses nothing."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from vime_agents.serving.hf_folder import check_hf_folder
from vime_trainers.models.tiny import SPECIAL_TOKENS, VOCAB_SIZE, ensure_tiny_qwen3


def test_the_folder_is_one_that_an_engine_loads(tiny_qwen3: Path):
    info = check_hf_folder(tiny_qwen3)
    assert (info.architecture, info.vocab_size, info.tied_embeddings) == (
        "Qwen3ForCausalLM",
        VOCAB_SIZE,
        True,
    )
    assert "lm_head.weight" not in info.tensors
    # A layer by hand: q and o, k and v, the three of the MLP, two norms of 128 and two of 32.
    layer = 2 * 128 * 128 + 2 * 64 * 128 + 3 * 384 * 128 + 2 * 128 + 2 * 32
    assert info.num_parameters == 512 * 128 + 4 * layer + 128


def test_the_same_seed_gives_the_same_weights(tiny_qwen3: Path, tmp_path: Path):
    again = load_file(ensure_tiny_qwen3(tmp_path) / "model.safetensors")
    first = load_file(tiny_qwen3 / "model.safetensors")
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = load_file(ensure_tiny_qwen3(tmp_path, seed=1) / "model.safetensors")
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_making_a_model_leaves_the_global_random_state_alone(tmp_path: Path):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    ensure_tiny_qwen3(tmp_path, seed=2)
    assert torch.equal(torch.rand(2), expected)


def test_every_id_is_a_token_and_any_text_survives(tiny_qwen3: Path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen3)
    assert len(tokenizer) == VOCAB_SIZE
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    assert tokenizer.eos_token_id == SPECIAL_TOKENS.index("<|im_end|>")
    for text in (
        "",
        "Hello",
        "  two  spaces\n\n",
        "wörld 日本 🙂",
        "17+25=42",
        "<tool_call>\n{}\n</tool_call>",
    ):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_messages_become_chatml(tiny_qwen3: Path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen3)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "5"},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
