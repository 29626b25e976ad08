"""Tools for a person to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def tool_lines(schema: Mapping[str, Any]) -> list[str]:
    """A tool in the shape of OpenAI's `tools`: its call, what it does, a line for each parameter."""
    function = schema["function"]
    lines = [signature(function), *(f"  {line}" for line in function["description"].splitlines())]
    required = required_of(function)
    for name, parameter in parameters_of(function).items():
        default = "" if name in required else f" (default: {json.dumps(parameter.get('default'))})"
        text = parameter.get("description", "")
        lines.append(f"    {name}: {type_of(parameter)}{default}{'  ' + text if text else ''}")
    return lines


def signature(function: Mapping[str, Any]) -> str:
    """`name(required, optional=)`."""
    required = required_of(function)
    names = (name if name in required else f"{name}=" for name in parameters_of(function))
    return f"{function['name']}({', '.join(names)})"


def parameters_of(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameter -> its schema."""
    return function.get("parameters", {}).get("properties", {})


def required_of(function: Mapping[str, Any]) -> list[str]:
    """The parameters that a call must give."""
    return function.get("parameters", {}).get("required", [])


def type_of(parameter: Mapping[str, Any]) -> str:
    """A JSON schema's type in a word: `integer`, `string or null`, `array of number`."""
    if "enum" in parameter:
        return "one of " + ", ".join(json.dumps(value) for value in parameter["enum"])
    if "anyOf" in parameter:
        return " or ".join(type_of(option) for option in parameter["anyOf"])
    kind = parameter.get("type", "object" if "$ref" in parameter else "any")
    if kind == "array" and "items" in parameter:
        return f"array of {type_of(parameter['items'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
