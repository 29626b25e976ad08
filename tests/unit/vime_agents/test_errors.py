from __future__ import annotations

import copy
import pickle

import pytest

from vime_agents import errors


def tree(cls: type) -> list[type]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in tree(child))]


OURS = [c for c in tree(errors.VimeAgentsError) if c.__module__ == errors.__name__]
SPECIAL = {
    errors.UnknownIdError: ("env", "Calulator-v0", ["KeyLookup-v0", "Calculator-v0"]),
    errors.MissingDependencyError: ("torch", "train", "training"),
}


@pytest.mark.parametrize("cls", [*OURS, errors.ToolError])
def test_every_error_survives_a_process_boundary(cls: type[Exception]) -> None:
    error = cls(*SPECIAL.get(cls, ("what, where, and how to fix it",)))
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_every_error_that_ends_an_episode_has_a_known_class() -> None:
    assert {c.failure_class for c in tree(errors.EpisodeError)} <= set(errors.FAILURE_CLASSES)


@pytest.mark.parametrize(
    ("cls", "failure_class", "retryable"),
    [
        (errors.ModelError, "model", False),
        (errors.EnvError, "env", False),
        (errors.EnvFault, "env", True),
        (errors.GraderError, "grader", False),
        (errors.GraderTimeout, "grader", False),
        (errors.JudgeError, "judge", False),
        (errors.EngineError, "engine", True),
        (errors.BudgetError, "budget", False),
        (errors.SandboxError, "sandbox", True),
        (errors.SandboxUnavailable, "sandbox", False),
        (errors.SandboxDead, "sandbox", True),
        (errors.SandboxTimeout, "sandbox", True),
        (errors.CommandNotFound, "sandbox", False),
        (errors.SandboxFileNotFound, "sandbox", False),
        (errors.SandboxPermissionError, "sandbox", False),
    ],
)
def test_only_infrastructure_is_tried_again(cls: type, failure_class: str, retryable: bool) -> None:
    assert (cls.failure_class, cls.retryable) == (failure_class, retryable)


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.UnknownIdError, LookupError),
        (errors.MissingDependencyError, ImportError),
        (errors.ContractError, RuntimeError),
        (errors.SandboxTimeout, TimeoutError),
        (errors.SandboxFileNotFound, FileNotFoundError),
        (errors.SandboxPermissionError, PermissionError),
    ],
)
def test_errors_are_what_python_programmers_expect(cls: type, builtin: type) -> None:
    assert issubclass(cls, builtin)
    assert issubclass(cls, errors.VimeAgentsError)


def test_a_tools_error_is_not_an_error_of_ours() -> None:
    assert not issubclass(errors.ToolError, errors.VimeAgentsError)


def test_an_unknown_id_proposes_the_nearest() -> None:
    error = errors.UnknownIdError("env", "calculater-v0", {"KeyLookup-v0", "Calculator-v0"})
    assert error.suggestion == "Calculator-v0"
    assert str(error) == (
        "unknown env 'calculater-v0'. Did you mean 'Calculator-v0'? Known: Calculator-v0, KeyLookup-v0."
    )
    far = errors.UnknownIdError("env", "zzz", ["Calculator-v0"])
    assert far.suggestion is None
    assert "Did you mean" not in str(far)
    assert "Known" not in str(errors.UnknownIdError("env", "x", [str(n) for n in range(21)]))


def test_a_missing_package_says_what_to_install() -> None:
    error = errors.MissingDependencyError("megatron-core", "train", "the trainer")
    assert str(error) == "the trainer needs the package 'megatron-core': pip install 'vime-agents[train]'"


@pytest.mark.parametrize(
    ("name", "known", "hit"),
    [
        ("LOCAL", ["local"], "local"),
        ("dokcer", ["docker", "local"], "docker"),
        ("x", [], None),
        ("", ["a"], None),
    ],
)
def test_nearest_ignores_case_and_small_slips(name: str, known: list[str], hit: str | None) -> None:
    assert errors.nearest(name, known) == hit
