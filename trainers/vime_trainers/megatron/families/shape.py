"""The part of a Hugging Face `config.json` that a decoder is made of, and the tensors that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vime_trainers.megatron.families.rope import RopeScaling

FLOAT32_TENSORS = ("e_score_correction_bias",)
"""Last names of tensors that are float32 in a checkpoint of any precision, and are kept so."""


@dataclass(frozen=True, slots=True)
class Family:
    """What tells the attention of one family from another's."""

    qkv_bias: bool = False
    qk_norm: bool = False
    latent: bool = False
    """Keys and values are projected from a narrow latent vector (multi-head latent attention)."""


FAMILIES = {
    "llama": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "qwen3_moe": Family(qk_norm=True),
    "deepseek_v3": Family(latent=True),
}
"""`model_type` of config.json -> family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    q_rank: int | None
    """Width of the queries' latent vector; None: queries are projected from the hidden state."""
    kv_rank: int
    nope_dim: int
    """Part of a head's query and key without position."""
    rope_dim: int
    """Part with rotary position; of the keys, shared by all heads."""
    v_dim: int

    @property
    def qk_dim(self) -> int:
        """Width of a head's query and key."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """Mixture of experts."""

    num_experts: int
    top_k: int
    """Experts of one token."""
    ffn_size: int
    shared_ffn_size: int
    """Width of the MLP that every token goes through besides its experts; 0: none."""
    in_layer: tuple[bool, ...]
    """Which layers have experts; the others have one MLP."""
    score: Literal["softmax", "sigmoid"]
    normalized: bool
    """Whether the weights of a token's experts sum to 1, before `scaling`."""
    scaling: float = 1.0
    num_groups: int | None = None
    """Experts are in groups, of which a token chooses `group_top_k` first; None: no groups."""
    group_top_k: int | None = None
    selection_bias: bool = False
    """Whether a bias of each expert takes part in the choice, not in the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The part of a Hugging Face `config.json` that a decoder is made of."""

    model_type: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position: int
    tied: bool
    """Whether the output layer is the embedding."""
    rope_scaling: RopeScaling | None = None
    latent: LatentShape | None = None
    experts: ExpertShape | None = None

    @property
    def family(self) -> Family:
        """The family's line of the table."""
        return FAMILIES[self.model_type]

    def hf_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint and its shape, in the order in which weights are exported."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size)
        }
        for index in range(self.num_layers):
            shapes |= {f"model.layers.{index}.{name}": shape for name, shape in self._layer(index).items()}
        shapes["model.norm.weight"] = (self.hidden_size,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return shapes

    def _layer(self, index: int) -> dict[str, tuple[int, ...]]:
        attention = self._attention() if self.latent is None else self._latent_attention(self.latent)
        layer: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (self.hidden_size,)}
        layer |= {f"self_attn.{name}": shape for name, shape in attention.items()}
        layer["post_attention_layernorm.weight"] = (self.hidden_size,)
        if self.experts is None or not self.experts.in_layer[index]:
            return layer | self._mlp("mlp", self.ffn_size)
        layer["mlp.gate.weight"] = (self.experts.num_experts, self.hidden_size)
        if self.experts.selection_bias:
            layer["mlp.gate.e_score_correction_bias"] = (self.experts.num_experts,)
        for expert in range(self.experts.num_experts):
            layer |= self._mlp(f"mlp.experts.{expert}", self.experts.ffn_size)
        if self.experts.shared_ffn_size:
            layer |= self._mlp("mlp.shared_experts", self.experts.shared_ffn_size)
        return layer

    def _mlp(self, prefix: str, width: int) -> dict[str, tuple[int, ...]]:
        hidden = self.hidden_size
        return {
            f"{prefix}.gate_proj.weight": (width, hidden),
            f"{prefix}.up_proj.weight": (width, hidden),
            f"{prefix}.down_proj.weight": (hidden, width),
        }

    def _attention(self) -> dict[str, tuple[int, ...]]:
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            f"{x}_proj.weight": (rows, self.hidden_size) for x, rows in (("q", q), ("k", kv), ("v", kv))
        }
        if self.family.qkv_bias:
            shapes |= {"q_proj.bias": (q,), "k_proj.bias": (kv,), "v_proj.bias": (kv,)}
        if self.family.qk_norm:
            shapes |= {f"{x}_norm.weight": (self.head_dim,) for x in "qk"}
        return shapes | {"o_proj.weight": (self.hidden_size, q)}

    def _latent_attention(self, latent: LatentShape) -> dict[str, tuple[int, ...]]:
        hidden, q = self.hidden_size, self.num_heads * latent.qk_dim
        shapes: dict[str, tuple[int, ...]] = {"q_proj.weight": (q, hidden)}
        if latent.q_rank is not None:
            shapes = {
                "q_a_proj.weight": (latent.q_rank, hidden),
                "q_a_layernorm.weight": (latent.q_rank,),
                "q_b_proj.weight": (q, latent.q_rank),
            }
        return shapes | {
            "kv_a_proj_with_mqa.weight": (latent.kv_rank + latent.rope_dim, hidden),
            "kv_a_layernorm.weight": (latent.kv_rank,),
            "kv_b_proj.weight": (self.num_heads * (latent.nope_dim + latent.v_dim), latent.kv_rank),
            "o_proj.weight": (hidden, self.num_heads * latent.v_dim),
        }
