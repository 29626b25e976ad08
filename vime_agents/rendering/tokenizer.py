"""The tokenizer of a Hugging Face folder."""

from __future__ import annotations

import os
from typing import Any

from vime_agents.errors import ConfigError, MissingDependencyError


def load_tokenizer(hf_checkpoint: str) -> Any:
    """The fast tokenizer of a local Hugging Face folder.

    Raises:
        MissingDependencyError: transformers is not installed.
        ConfigError: no tokenizer there, or one that cannot be read.
    """
    # A policy process needs no torch; transformers then only says so, loudly.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError("transformers", "tokens", "rendering token ids") from error
    try:
        return AutoTokenizer.from_pretrained(hf_checkpoint, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--hf-checkpoint {hf_checkpoint}: no readable tokenizer: {error}") from error
