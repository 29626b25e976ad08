"""The converted model is whole: it answers as the real one does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vime_agents.serving.hf_folder import check_hf_folder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def test_the_folder_holds_the_published_architecture(smollm2: Path):
    info = check_hf_folder(smollm2)
    assert info.num_parameters == 134_515_008  # as the model's authors state
    assert (info.architecture, info.vocab_size, info.max_context_tokens) == ("LlamaForCausalLM", 49152, 8192)
    assert info.tied_embeddings


@torch.no_grad()
def test_it_can_add(smollm2: Path):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    question = [{"role": "user", "content": "What is 2+3?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")[
        "input_ids"
    ]
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
    )
    assert tokenizer.decode(output[0, prompt.shape[1] :]) == "2 + 3 = 5<|im_end|>"
