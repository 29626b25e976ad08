"""A model folder that passes the check, made without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    """Complete for `check_hf_folder`; no engine could serve it."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"w": np.zeros((2, 2), np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["X"], "vocab_size": 2}))
    (folder / "tokenizer.json").write_text("{}")
    return folder
