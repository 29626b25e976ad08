from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

from vime_agents import registry
from vime_agents.errors import ConfigError, ContractError, UnknownIdError


@pytest.fixture
def plugin(tmp_path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A third party's module that is importable."""
    (tmp_path / "my_plugin.py").write_text(
        "import gymnasium\nclass Outer:\n    class Inner: pass\nclass MyEnv(gymnasium.Env): pass\n"
    )
    (tmp_path / "my_broken_plugin.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "my_plugin"


def test_objects_are_loaded_by_colon_or_dot(plugin: str) -> None:
    inner = registry.load_object(f"{plugin}:Outer.Inner")
    assert inner.__qualname__ == "Outer.Inner"
    assert registry.load_object(f"{plugin}.Outer").Inner is inner


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_plugin", r"my env must be written 'module:name', got 'my_plugin'"),
        (":Name", "must be written"),
        ("my_plugin:", "must be written"),
        ("no_such_module:X", r"my env 'no_such_module:X': no module named 'no_such_module'"),
        ("my_plugin.deeper:X", "no module named"),
        ("my_plugin:Nothing", "module 'my_plugin' has no 'Nothing'"),
        ("my_plugin:Outer.Nothing", "module 'my_plugin' has no 'Outer.Nothing'"),
    ],
)
def test_a_path_that_leads_nowhere_is_named(plugin: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.load_object(path, "my env")


def test_a_plugins_own_missing_import_is_not_hidden(plugin: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        registry.load_object("my_broken_plugin:X")


@pytest.mark.parametrize(
    "name", ["Calculator-v0", "vime_agents/Calculator-v0", "vime_envs.calculator:Calculator"]
)
def test_an_env_is_found_by_each_of_its_names(name: str) -> None:
    from vime_envs.calculator import Calculator

    assert registry.env_class(name) is Calculator


def test_any_gymnasium_env_is_found_by_its_id(plugin: str) -> None:
    gymnasium.register(id="test/ByPath-v0", entry_point=f"{plugin}:MyEnv")
    gymnasium.register(id="test/ByFunction-v0", entry_point=lambda: None)
    try:
        assert registry.env_class("test/ByPath-v0").__name__ == "MyEnv"
        with pytest.raises(ContractError, match="registered with a function"):
            registry.env_class("test/ByFunction-v0")
    finally:
        del gymnasium.registry["test/ByPath-v0"], gymnasium.registry["test/ByFunction-v0"]


def test_unknown_names_come_with_a_proposal() -> None:
    with pytest.raises(UnknownIdError, match="Did you mean 'Calculator-v0'"):
        registry.env_class("Calculater-v0")
    with pytest.raises(UnknownIdError, match=r"unknown sandbox backend 'locl'\. Did you mean 'local'"):
        registry.sandbox_provider("locl")


def test_each_provider_is_new() -> None:
    first, second = registry.sandbox_provider("local"), registry.sandbox_provider("local")
    assert type(first).__name__ == "LocalSandboxProvider"
    assert first is not second


def test_every_built_in_name_leads_somewhere() -> None:
    for group in (registry.ENVS_GROUP, registry.SANDBOXES_GROUP):
        for name, path in registry.entry_points(group).items():
            assert isinstance(registry.load_object(path, name), type)


def test_importing_registers_everything_and_imports_no_plugin() -> None:
    program = (
        "import sys, vime_agents, gymnasium\n"
        "assert 'vime_agents/Calculator-v0' in gymnasium.registry\n"
        "loaded = {m.partition('.')[0] for m in sys.modules}\n"
        "print(sorted(loaded & {'vime_envs', 'vime_sandboxes', 'torch', 'vllm', 'ray', 'transformers'}))"
    )
    out = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (out.stdout, out.stderr) == ("[]\n", "")
