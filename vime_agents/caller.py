"""Who called: for functions that make a class on behalf of another module."""

from __future__ import annotations

import sys


def caller_module(default: str) -> str:
    """Name of the module that calls the function that calls this; `default` where it has none.

    A class that is made for it belongs there: workers find it by that name.
    """
    return sys._getframe(2).f_globals.get("__name__", default)
