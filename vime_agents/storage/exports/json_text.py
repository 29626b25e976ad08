"""JSON text that every reader accepts, whatever hostile text is in it."""

from __future__ import annotations

import json
import re
from typing import Any

_LONE_SURROGATE = re.compile(r"\\(?:\\|ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(ud[89a-f][0-9a-f]{2}))")
"""What begins with a backslash in the text of `json.dumps`; half a surrogate pair alone is group 1."""


def json_line(value: Any) -> str:
    r"""One line of JSON, ASCII alone.

    Half a surrogate pair, which is no Unicode text and which most readers refuse, becomes the six characters
    \udXXX. NUL and other control characters stay what they are.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    if "\\ud" not in text:
        return text
    return _LONE_SURROGATE.sub(lambda m: f"\\\\{m[1]}" if m[1] else m[0], text)
