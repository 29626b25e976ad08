"""Flags of `vime-agents sandboxes ...`, and texts that name a sandbox."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from vime_agents import registry
from vime_agents.errors import ConfigError, UnknownIdError, did_you_mean
from vime_agents.registry import ENVS_GROUP, SANDBOXES_GROUP
from vime_agents.sandbox import SandboxSpec

BACKEND_HELP = "one backend (local, docker, e2b, unsafe); default: all"
SPEC_HELP = "a backend, or BACKEND:IMAGE (docker:python:3.12-slim, e2b:my-template)"


class Parser(argparse.ArgumentParser):
    """Strict: an unknown flag is an error with the nearest known one, and no flag can be cut short."""

    def __init__(
        self, command: str, description: str, *, group: str = "sandboxes", usage: str = "", epilog: str = ""
    ) -> None:
        """`command` follows `vime-agents GROUP` in the help, `usage` follows the command."""
        prog = " ".join(filter(None, ("vime-agents", group, command)))
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}".rstrip(),
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The flags' values.

        Raises:
            ConfigError: what was given is not understood. SystemExit: after printing the help.
        """
        found, unknown = self.parse_known_args(list(argv))
        if not unknown:
            return found
        if not unknown[0].startswith("-"):
            raise ConfigError(f"{self.prog}: unexpected argument {unknown[0]!r}")
        flag = unknown[0].partition("=")[0]
        hint = did_you_mean(flag, self._option_string_actions, "{}")
        raise ConfigError(f"{self.prog}: unknown flag {flag}.{hint}")

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError instead of printing a screen of usage."""
        raise ConfigError(f"{self.prog}: {message.removeprefix('argument ')}")


def backend_of(text: str) -> str:
    """`text`, which must be a backend. Raises UnknownIdError."""
    known = registry.entry_points(SANDBOXES_GROUP)
    if text not in known:
        raise UnknownIdError("sandbox backend", text, known)
    return text


def spec_of(text: str, *, envs: bool = True) -> SandboxSpec:
    """The spec that a text names: a backend, BACKEND:IMAGE, an environment's id, or a JSON object of fields.

    Raises:
        UnknownIdError: no such backend, nor (with `envs`) environment.
        ConfigError: a field that does not exist or has the wrong type; an environment without a sandbox.
    """
    if text.lstrip().startswith("{"):
        return _spec_from_json(text)
    backends = registry.entry_points(SANDBOXES_GROUP)
    backend, colon, image = text.partition(":")
    if backend in backends:
        if colon and not image:
            raise ConfigError(f"{text!r} does not say which image: write {backend}:IMAGE")
        return SandboxSpec(backend=backend, image=image or None)
    if not envs:
        raise UnknownIdError("sandbox backend", backend, backends)
    try:
        cls = registry.env_class(text)
    except UnknownIdError:
        known = [*backends, *registry.entry_points(ENVS_GROUP)]
        raise UnknownIdError("sandbox backend or environment", text, known) from None
    spec = getattr(cls, "sandbox_spec", None)
    if not isinstance(spec, SandboxSpec):
        raise ConfigError(f"the environment {text!r} declares no sandbox (its class has no `sandbox_spec`)")
    return spec


def _spec_from_json(text: str) -> SandboxSpec:
    try:
        values = from_json(text)
    except ValueError as error:
        raise ConfigError(f"the sandbox's spec is not JSON: {error}") from error
    known = SandboxSpec.__dataclass_fields__
    for name in values:
        if name not in known:
            hint = did_you_mean(name, known) or f" There are: {', '.join(known)}."
            raise ConfigError(f"SandboxSpec has no field {name!r}.{hint}")
    try:
        spec = TypeAdapter(SandboxSpec).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"SandboxSpec.{where}: {first['msg']}, got {first['input']!r}") from error
    backend_of(spec.backend)
    return spec
