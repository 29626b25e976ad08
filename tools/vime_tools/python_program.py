"""A program that runs pieces of Python one after the other, in one namespace.

It runs inside a sandbox (`python3 -u -c <this file>`), so it imports nothing but the standard library. Each
line of standard input is a JSON object with `code` and `marker`; behind the code's output goes a line
`<marker> ok` or `<marker> error`. The value of a last expression is printed, as the interactive Python does.
"""

import ast
import contextlib
import json
import linecache
import os
import signal
import sys
import traceback
import types


def main() -> None:
    """Serve requests until standard input ends."""
    requests, answers, owner = os.fdopen(os.dup(0), "rb"), os.dup(1), os.getpid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(1, 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number, line in enumerate(requests, 1):
        request = json.loads(line)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - empty; `exit()` has closed the one before
        status = run(request["code"], vars(module), f"<call {number}>")
        if os.getpid() != owner:  # a child that the code forked must not answer as well
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the code may have put anything in their place
                stream.flush()
        os.write(answers, f"\n{request['marker']} {status}\n".encode())


def run(code: str, namespace: dict[str, object], name: str) -> str:
    """Run a piece; a SIGINT ends it. `ok`, or `error` with the traceback printed."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        if isinstance(last, ast.Expr):
            result = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)
            if result is not None:
                namespace["_"] = result
                sys.stdout.write(f"{result!r}\n")
        return "ok"
    except BaseException as error:  # noqa: BLE001 - `exit()` as well: the session goes on
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        show(error, name)
        return "error"
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def show(error: BaseException, name: str) -> None:
    """Print the traceback from the code's own first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # noqa: BLE001 - the error's own words may fail
        text = f"{type(error).__name__}\n"
    os.write(2, text.encode("utf-8", "backslashreplace"))


if __name__ == "__main__":
    main()
