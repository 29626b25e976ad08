"""Is this folder a Hugging Face model that an engine can load? Answered in milliseconds, without torch."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime_agents.errors import ConfigError

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HFModelInfo:
    """What the folder says of itself."""

    path: Path
    architecture: str
    """`LlamaForCausalLM`, `Qwen3ForCausalLM`, ..."""
    vocab_size: int
    max_context_tokens: int | None
    """None where the config does not say."""
    tied_embeddings: bool
    """Whether the output layer shares the embedding matrix."""
    tensors: dict[str, tuple[int, ...]]
    """Name -> shape of every tensor in the safetensors files."""
    num_bytes: int
    """Size of all tensors."""

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors."""
        total = 0
        for shape in self.tensors.values():
            count = 1
            for size in shape:
                count *= size
            total += count
        return total


def check_hf_folder(path: str | Path) -> HFModelInfo:
    """Read the folder's config and safetensors headers.

    Raises:
        ConfigError: no such folder, a missing or broken config.json, no or truncated safetensors files,
            no tokenizer. Names the flag and the fix.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise _error(folder, what, "give the folder that holds config.json and *.safetensors")
    config = _read_json(folder, "config.json")
    tensors: dict[str, tuple[int, ...]] = {}
    num_bytes = 0
    for file in _weight_files(folder):
        shapes, size = _read_header(folder, file)
        tensors |= shapes
        num_bytes += size
    if not tensors:
        raise _error(folder, "holds no tensor in its *.safetensors", "download or save the model again")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        fix = "save one into it: AutoTokenizer.from_pretrained(SOURCE).save_pretrained(FOLDER)"
        raise _error(folder, f"has no tokenizer (none of {', '.join(_TOKENIZERS)})", fix)
    return HFModelInfo(
        path=folder.resolve(),
        architecture=(config.get("architectures") or ["unknown"])[0],
        vocab_size=int(config.get("vocab_size", 0)),
        max_context_tokens=config.get("max_position_embeddings"),
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        tensors=tensors,
        num_bytes=num_bytes,
    )


def _error(folder: Path, what: str, fix: str) -> ConfigError:
    return ConfigError(f"--hf-checkpoint {folder}: {what}. Fix: {fix}")


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name
    if not file.is_file():
        raise _error(folder, f"has no {name}", "give the folder of a model in Hugging Face format")
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _error(folder, f"{name} is not JSON ({error})", "download or save the model again") from error
    if not isinstance(value, dict):
        raise _error(folder, f"{name} is not a JSON object", "download or save the model again")
    return value


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files; those that the index names, where there is one."""
    if (folder / _INDEX).is_file():
        names = sorted(set(_read_json(folder, _INDEX).get("weight_map", {}).values()))
        missing = [n for n in names if not (folder / n).is_file()]
        if missing:
            raise _error(folder, f"lacks {missing[0]}, which {_INDEX} names", "download the missing shards")
        return [folder / n for n in names]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        fix = "save the model with safetensors: model.save_pretrained(FOLDER, safe_serialization=True)"
        raise _error(folder, "has no *.safetensors file", fix)
    return files


def _read_header(folder: Path, file: Path) -> tuple[dict[str, tuple[int, ...]], int]:
    """Shapes and total bytes of one file; checks that the file is as long as its header says.

    A safetensors file is the header's length (u64, little-endian), the header (JSON), the data.
    """
    size = file.stat().st_size
    fix = "the file is incomplete: download or save it again"
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if 8 + length > size:
            raise _error(folder, f"{file.name} is cut off within its header ({size} bytes)", fix)
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in header.items()}
            end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _error(folder, f"{file.name} has a broken header ({error!r})", fix) from error
    if 8 + length + end != size:
        raise _error(folder, f"{file.name} has {size} bytes, its header promises {8 + length + end}", fix)
    return shapes, end


def same_tokenizer(one: str | Path, other: str | Path) -> bool:
    """Whether an id means the same text in both models; chat templates may differ.

    Where neither folder has a `tokenizer.json`, sizes of vocabularies are compared.
    """
    return _token_table(Path(one).expanduser()) == _token_table(Path(other).expanduser())


def _token_table(folder: Path) -> Any:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _read_json(folder, "config.json").get("vocab_size")
    table = _read_json(folder, "tokenizer.json")
    added = {token["id"]: token["content"] for token in table.get("added_tokens", ())}
    return table["model"], added
