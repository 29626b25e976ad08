"""A random Qwen3 with a tokenizer of its own: real architecture, about 0.9 M parameters, made in seconds.

For tests and for trying out the loop: what it says is noise, but every mechanism sees the real thing
(grouped-query attention, query/key norms, tied embeddings, ChatML with tool and think markers).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vime_trainers.models.cache import make_once, models_folder

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Ids 0, 1, 2, ...; those of Qwen3's chat format."""

VOCAB_SIZE = 512

# Merges are learnt from these lines: the words that chat prompts and tool schemas repeat.
_CORPUS = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWhat is 7 + 25?<|im_end|>",
    "<|im_start|>assistant\nThe answer is 42.<|im_end|>\n# Tools\n\nYou may call one or more functions\n",
    '{"type": "function", "function": {"name": "multiply", "description": "Multiply two numbers.", ',
    '"parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, ',
    '"required": ["a", "b"]}}}\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n',
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n",
    "For each function call, return a json object with function name and arguments within the tags\n",
    "question answer number string value result error key the and that this with from for not one two\n",
    "Use the tool to look up each value, then reply with the result. Compute the product of the numbers.\n",
    "I will check the list and search for the next item. The user wants to know which word comes first.\n",
)

# ChatML with Hermes-style tools, as Qwen3 writes it.
_CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are \
provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments \
within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": \
<args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and message.content) or not loop.first %}{{- '\\n' }}{%- endif %}
            {%- set function = call.function if call.function else call %}
            {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
            {{- function.arguments if function.arguments is string else function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def ensure_tiny_qwen3(cache: Path | None = None, *, seed: int = 0, tied: bool = True) -> Path:
    """The model's folder (4 MB, float32), made on first use in seconds.

    Args:
        cache: Folder of the cache; default `$VIME_AGENTS_CACHE` or `~/.cache/vime-agents`.
        seed: Of the random weights.
        tied: Whether the output layer shares the embedding matrix.
    """
    name = f"tiny-qwen3-seed{seed}{'' if tied else '-untied'}"
    return make_once(models_folder(cache) / name, lambda out: _build(out, seed, tied))


def _build(out: Path, seed: int, tied: bool) -> None:
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tied,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        # Wider than the usual 0.02, so that log-probs of different weights differ by whole nats.
        initializer_range=0.05,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model.save_pretrained(out)
    _write_tokenizer(out)


def _write_tokenizer(out: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    (out / "chat_template.jinja").write_text(_CHAT_TEMPLATE)
