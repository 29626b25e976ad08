"""Regular expressions on names -> what is trained."""

import pytest
import torch

from vime_agents.errors import ConfigError
from vime_trainers.megatron import trainable


@pytest.fixture(autouse=True)
def one_stage(monkeypatch):
    """A process group of one, without starting one."""

    class Group:
        def size(self):
            return 1

    def gather(found, value, group):
        found[0] = value

    monkeypatch.setattr(trainable.parallel_state, "get_pipeline_model_parallel_group", Group)
    monkeypatch.setattr(trainable.dist, "all_gather_object", gather)


def parameters():
    q_k_v = tuple(f"model.layers.0.self_attn.{x}_proj.weight" for x in "qkv")
    table = {
        "embedding.word_embeddings.weight": ("model.embed_tokens.weight",),
        "decoder.layers.0.self_attention.linear_qkv.weight": q_k_v,
        "decoder.layers.0.mlp.linear_fc2.weight": ("model.layers.0.mlp.down_proj.weight",),
    }
    return [(name, hf_names, torch.nn.Parameter(torch.zeros(1))) for name, hf_names in table.items()]


def trained(**lists) -> list[bool]:
    names = parameters()
    trainable.freeze(names, **({"only_train": (), "frozen": ()} | lists))
    return [parameter.requires_grad for _, _, parameter in names]


def test_names_of_both_worlds_are_searched():
    assert trained(only_train=["down_proj"]) == [False, False, True]
    assert trained(only_train=["linear_fc2"]) == [False, False, True]
    assert trained(frozen=[r"embed_tokens", r"layers\.0\.mlp"]) == [False, True, False]
    assert trained(frozen=["self_attn"]) == [True, False, True]
    assert trained() == [True, True, True]


@pytest.mark.parametrize(
    ("lists", "told"),
    [
        ({"frozen": ["q_proj"]}, "takes .*q_proj.weight out of .*linear_qkv"),
        ({"frozen": ["embed", "nothing"]}, "'nothing': no parameter has it"),
        ({"only_train": ["("]}, "is not a regular expression"),
        ({"frozen": ["weight"]}, "leaves nothing to train"),
        ({"frozen": ["a"], "only_train": ["b"]}, "give one of the two"),
    ],
)
def test_a_pattern_that_does_not_do_what_it_says_is_refused(lists, told):
    with pytest.raises(ConfigError, match=told):
        trained(**lists)
