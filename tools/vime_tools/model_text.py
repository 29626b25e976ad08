"""What a model may write and a program cannot take."""

from __future__ import annotations

from vime_agents.errors import ToolError


def as_utf8(text: str, what: str) -> bytes:
    """The text as UTF-8. Raises ToolError for lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"not valid Unicode in the {what}: {error.reason}, at {error.start}") from error


def without_nul(text: str, what: str) -> str:
    """The same text. Raises ToolError for a NUL, and for lone surrogates."""
    if b"\0" in as_utf8(text, what):
        raise ToolError(f"a NUL character in the {what}")
    return text
