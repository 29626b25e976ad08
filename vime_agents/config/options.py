"""Base of the config classes: defaults < YAML files, left to right < flags; strict at every edge."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import yaml

from vime_agents.config import vllm_flags
from vime_agents.config.fields import Option, options_of
from vime_agents.errors import ConfigError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Options:
    """A frozen set of settings. Subclasses declare fields; flags, YAML keys and help follow from them.

    Guarantees: an instance is valid, whichever way it was made; `from_yaml(x.to_yaml()) == x`.
    """

    program: ClassVar[str] = ""
    """How the command is called, for its help."""
    summary: ClassVar[str] = ""
    """What the command does, in a line or two."""

    owned_vllm_flags: ClassVar[Mapping[str, str]] = vllm_flags.OWNED
    """vLLM's flags that cannot be given -> why, or what to give instead."""

    vllm: Mapping[str, vllm_flags.Value] = field(default_factory=dict, metadata={"passthrough": True})
    """vLLM's own flags by name, without `--vllm-`."""

    def __post_init__(self) -> None:
        for name, option in options_of(type(self)).items():
            object.__setattr__(self, name, option.parse(getattr(self, name)))
        passed = vllm_flags.check_vllm_flags(self.vllm, self.owned_vllm_flags)
        object.__setattr__(self, "vllm", passed)
        self.check()

    def check(self) -> None:
        """Checks that need more than one field. Raises ConfigError."""

    def changes_from(self, old: Mapping[str, Any]) -> list[str]:
        """One line for each setting that differs from `old`, as `to_dict` gave it, and may not."""
        options = options_of(type(self))

        def fixed(values: Mapping[str, Any]) -> dict[str, Any]:
            return {k: v for k, v in values.items() if k not in options or not options[k].may_change}

        return differences(fixed(old), fixed(self.to_dict()))

    @property
    def vllm_argv(self) -> tuple[str, ...]:
        """VLLM's own flags, as its server reads them."""
        return vllm_flags.vllm_argv(self.vllm)

    # ---------------------------------------------------------------------------------------- files

    def to_dict(self) -> dict[str, Any]:
        """YAML key -> value, in the order of the help."""
        plain = {name: getattr(self, name) for name in options_of(type(self))}
        for name, value in self.vllm.items():
            key = f"vllm_{name.replace('-', '_')}"
            plain[key] = list(value) if isinstance(value, tuple) else value
        return plain

    def to_yaml(self) -> str:
        """Every setting, defaults included; can be run again with `--config`."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """A config from YAML keys; missing ones take their default.

        Raises:
            ConfigError: an unknown or missing key, or a value that is not allowed.
        """
        options = options_of(cls)
        known, passed = cls._split(values)
        missing = [o.flag for n, o in options.items() if o.required and n not in known]
        if missing:
            raise ConfigError(f"{', '.join(missing)}: required; give it as a flag or in a --config file")
        return cls(**known, vllm=passed)

    @classmethod
    def from_yaml(cls, text: str, where: str = "YAML") -> Self:
        """A config from the text of one file. Raises ConfigError."""
        return cls.from_dict(cls._read(text, where))

    # ---------------------------------------------------------------------------------------- flags

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> Self:
        """A config from flags and the `--config` files that they name.

        Raises:
            ConfigError: an unknown flag or key (with the nearest known one), or a value that is not allowed.
            SystemExit: after printing the help.
        """
        options = options_of(cls)
        own = frozenset(o.flag for o in options.values() if o.flag.startswith(vllm_flags.PREFIX))
        rest, passed = vllm_flags.take_vllm_flags(argv, own)
        parser = cls.parser()
        found, unknown = parser.parse_known_args(rest)
        if unknown:
            raise ConfigError(_unknown_flag(unknown[0], [o.flag for o in options.values()]))
        given = {n: v for n, v in vars(found).items() if n in options}
        values: dict[str, Any] = {}
        for path in getattr(found, "config", []):
            values.update(cls._read_file(Path(path)))
        values.update(given)
        values.update({f"vllm_{name.replace('-', '_')}": value for name, value in passed.items()})
        return cls.from_dict(values)

    @classmethod
    def aliases(cls) -> Mapping[str, tuple[str, ...]]:
        """Field -> short flags."""
        return {}

    @classmethod
    def parser(cls) -> argparse.ArgumentParser:
        """The parser behind flags and help; texts stay as typed, `Option.parse` converts them."""
        parser = _Parser(
            prog=cls.program,
            description=cls.summary,
            usage=f"{cls.program} [--config FILE ...] [--flag value ...]",
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=38, width=100),
            argument_default=argparse.SUPPRESS,
            epilog="Any flag of vLLM's server can be given as --vllm-<flag>. Each flag is also a key of the "
            "YAML files, with underscores. Flags win over files, later files over earlier ones.",
        )
        parser.add_argument(
            "--config", nargs="+", action="extend", metavar="FILE", help="YAML files with settings"
        )
        groups: dict[str, Any] = {}
        for option in options_of(cls).values():
            group = groups.get(option.section) or parser.add_argument_group(option.section)
            groups[option.section] = group
            _add_flag(group, option, cls.aliases().get(option.name, ()))
        return parser

    # ------------------------------------------------------------------------------------- internals

    @classmethod
    def _split(cls, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """(own settings, vLLM's) of YAML keys."""
        options = options_of(cls)
        known: dict[str, Any] = {}
        passed: dict[str, Any] = {}
        for key, value in values.items():
            if key in options:
                known[key] = value
            elif key.startswith("vllm_"):
                passed[key.removeprefix("vllm_")] = value
            else:
                hint = did_you_mean(key, options)
                raise ConfigError(f"unknown setting {key!r}.{hint}")
        return known, passed

    @classmethod
    def _read_file(cls, path: Path) -> dict[str, Any]:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--config: cannot read {path}: {error.strerror}") from error
        return cls._read(text, str(path))

    @classmethod
    def _read(cls, text: str, where: str) -> dict[str, Any]:
        """The checked settings of one file, so that an error names it."""
        try:
            values = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{where}: not YAML: {error}") from error
        if values is None:
            return {}
        if not isinstance(values, dict) or not all(isinstance(k, str) for k in values):
            raise ConfigError(f"{where}: must be a mapping of settings, got {text[:80]!r}")
        try:
            known, passed = cls._split(values)
            checked = {name: options_of(cls)[name].parse(value) for name, value in known.items()}
            vllm_flags.check_vllm_flags(passed, cls.owned_vllm_flags)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        return checked | {f"vllm_{name}": value for name, value in passed.items()}


_LONGEST_METAVAR = 72
"""Characters: argparse does not wrap it. A longer list of choices stands in the help text alone."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing a screen of usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def _unknown_flag(text: str, flags: Sequence[str]) -> str:
    if not text.startswith("-"):
        return f"unexpected argument {text!r}: every setting is a flag"
    flag = text.partition("=")[0]
    known = [*flags, *(f"--no-{f[2:]}" for f in flags), "--config"]
    return f"unknown flag {flag}.{did_you_mean(flag, known, '{}')}"


def _add_flag(group: argparse._ArgumentGroup, option: Option, short: tuple[str, ...]) -> None:
    # argparse reads % in a help text as a format.
    text = f"{option.help} {_default_text(option)}".replace("%", "%%")
    if option.kind is bool:
        group.add_argument(
            *short,
            option.flag,
            dest=option.name,
            action=argparse.BooleanOptionalAction,
            help=text,
            default=argparse.SUPPRESS,
        )
        return
    metavar = {int: "N", float: "X", str: "TEXT"}[option.kind]
    if option.choices:
        listing = "{" + ",".join(option.choices) + "}"
        metavar = listing if len(listing) <= _LONGEST_METAVAR else "NAME"
    group.add_argument(*short, option.flag, dest=option.name, metavar=metavar, help=text)


def _default_text(option: Option) -> str:
    if option.required:
        return "(required)"
    if option.default is None:
        return "(default: none)"
    if isinstance(option.default, bool):
        return f"(default: {'on' if option.default else 'off'})"
    return f"(default: {option.default})"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line for each setting that differs: `lr: 1e-06 -> 1e-05`."""
    absent = object()
    keys = [*new, *(k for k in old if k not in new)]
    return [
        f"{key}: {old.get(key, '(absent)')} -> {new.get(key, '(absent)')}"
        for key in keys
        if old.get(key, absent) != new.get(key, absent)
    ]
