"""The two programs of a grading, each in a sandbox of its own; imports the standard library alone.

`judge` runs the author's tests, and nothing of the agent's. The first line of its standard input is [test
files, solution's modules]. It writes ["tests", names], ["begin", name], ["call", ...] (answered by a line of
the solution's, or by ["gone", why]), ["end", name, None or the reason why it failed], and at last ["done"].

`solve` runs the agent's code, and nothing of the author's. A line of its standard input is [module, function,
arguments, keyword arguments]; it writes ["ready"], then ["value", value] or ["raised", type, message].

A line is a plain value as JSON. What comes back is built from JSON on the other side: a class of the
agent's, with an `__eq__` of its own, is never among it.
"""

import builtins
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
from typing import Any

PLAIN = "None, bool, int, float, str, bytes, list, tuple, dict, set and frozenset"
_BY_NAME = {"tuple": tuple, "set": set, "frozenset": frozenset}


def dumps(value):
    """JSON text of a plain value. Raises TypeError for any other, also for instances of subclasses."""
    return json.dumps(_encoded(value))


def loads(text) -> Any:
    """The value. What `dumps` cannot have made: ValueError, TypeError, KeyError or RecursionError."""
    return _decoded(json.loads(text))


def _encoded(value) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is list:
        return [_encoded(part) for part in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [_encoded(part) for part in value]}
    if kind is dict:
        return {"dict": [[_encoded(key), _encoded(part)] for key, part in value.items()]}
    raise TypeError(f"{kind.__name__} is no plain value; these are: {PLAIN}")


def _decoded(value) -> Any:
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {_decoded(key): _decoded(part) for key, part in content}
    return _BY_NAME[kind](_decoded(part) for part in content)


class SolutionError(Exception):
    """The solution ended, or did what no function should."""


def judge():
    """Run every test."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answers = os.fdopen(os.dup(0), encoding="utf-8", newline="\n")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def send(*message):
        channel.write(dumps(list(message)) + "\n")
        channel.flush()

    def call(module, name, args, kwargs):
        send("call", [module, name, list(args), kwargs])
        return _value(answers.readline(), f"{module}.{name}")

    files, modules = loads(answers.readline())
    sys.meta_path.insert(0, Finder(modules, call))
    sys.path.insert(0, os.getcwd())
    tests = [test for file in files for test in _tests_of(file)]
    send("tests", [name for name, _ in tests])
    for name, test in tests:
        send("begin", name)
        send("end", name, _failure(test))
    send("done")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the solution's modules: what they hold is called in the other sandbox."""

    def __init__(self, modules, call):
        parents = {name[:at] for name in modules for at in range(len(name)) if name[at] == "."}
        self._names, self._call = {*modules, *parents}, call

    def find_spec(self, name, path=None, target=None):
        """Of one of the names."""
        if name not in self._names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        """The ordinary one."""

    def exec_module(self, module):
        """Every name that a test asks for is a function."""

        def function(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *args, **kwargs: self._call(module.__name__, name, args, kwargs)

        module.__getattr__ = function


def _tests_of(file):
    module = importlib.import_module(file[: -len(".py")].replace("/", "."))
    found = [name for name, test in vars(module).items() if name.startswith("test") and callable(test)]
    return [(f"{file}::{name}", getattr(module, name)) for name in found]


def _failure(test):
    try:
        test()
    except Exception as error:  # noqa: BLE001 - that is what a failed test is
        return f"{type(error).__name__}: {error}"[:1000]
    return None


def _value(line, where):
    try:
        kind, *rest = loads(line)
        if kind == "value":
            (value,) = rest
            return value
        if kind == "gone":
            raise SolutionError(f"{where}: {rest[0]}")
        name, message = rest
        known = getattr(builtins, name, None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SolutionError(f"{where} answered what is no plain value: {error!r:.200}") from error
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            raised = known(str(message))
        except TypeError:  # UnicodeDecodeError and the like take more
            raised = SolutionError(f"{where} raised {name}: {message}")
        raise raised
    raise SolutionError(f"{where} raised {name}: {message}")


def solve():
    """Serve calls until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    requests = os.fdopen(os.dup(0), encoding="utf-8", newline="\n")
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    sys.path.insert(0, os.getcwd())
    answers.write(dumps(["ready"]) + "\n")
    answers.flush()
    for line in requests:
        try:
            module, name, args, kwargs = loads(line)
            value = getattr(importlib.import_module(module), name)(*args, **kwargs)
            answer = dumps(["value", value])
        except BaseException as error:  # noqa: BLE001 - SystemExit too: the tests judge what was raised
            answer = dumps(["raised", type(error).__name__, str(error)[:1000]])
        answers.write(answer + "\n")
        answers.flush()
