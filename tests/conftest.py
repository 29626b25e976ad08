"""Fixtures for every test."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does; timings are the benchmarks' business.
settings.register_profile("vime-agents", deadline=None)
settings.load_profile("vime-agents")

# A shell that starts the tests in the background lets them ignore these, and commands under test as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture(scope="session")
def tiny_qwen3() -> Path:
    """A random Qwen3 of under a million parameters, tied embeddings, with a tokenizer of its own."""
    from vime_trainers.models.tiny import ensure_tiny_qwen3

    return ensure_tiny_qwen3()


@pytest.fixture(scope="session")
def other_tiny_qwen3() -> Path:
    """The same architecture and tokenizer with other weights."""
    from vime_trainers.models.tiny import ensure_tiny_qwen3

    return ensure_tiny_qwen3(seed=1)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct."""
    from vime_trainers.models.smollm2 import ensure_smollm2

    return ensure_smollm2()
