from __future__ import annotations

import asyncio

import pytest

from tests.unit.vime_tools.hosts import Host, call
from vime_agents.errors import SandboxDead
from vime_tools.python_session import PythonSession

LOST = "[The next call starts a new Python session: the variables are lost.]"


@pytest.fixture
async def session(host: Host):
    made = PythonSession(host)
    yield made
    await made.close()


async def test_the_session_stays(session: PythonSession) -> None:
    assert await session.python("import math\nx = 5") == "[no output]"
    assert await session.python("def f(n):\n    return math.factorial(n)\nprint('é')\nf(x)") == "é\n120"
    assert await session.python("_ + 1") == "121"
    assert await session.python("from __future__ import annotations\nNone") == "[no output]"
    assert await session.python("import __main__; __main__.x, __name__") == "(5, '__main__')"


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("", "[no output]"),
        ("# nothing", "[no output]"),
        ("print('a', end='')", "a"),
        ("'\\ud800\\0'", "'\\ud800\\x00'"),
        ("print('\u2028')", "\u2028"),
        ("import sys; print('o'); print('e', file=sys.stderr); print('o')", "o\ne\no"),
        ("import subprocess; subprocess.run(['echo', 'child']); 1", "child\n1"),
        ("import os\nif os.fork(): os.wait(); print('parent')\nelse: print('child')", "child\nparent"),
    ],
)
async def test_answers(session: PythonSession, code: str, answer: str) -> None:
    assert await session.python(code) == answer
    assert await session.python("'and on'") == "'and on'"


@pytest.mark.parametrize(
    ("code", "first", "last"),
    [
        ("1 +", '  File "<call 2>", line 1', "SyntaxError: invalid syntax"),
        ("print('\ud800')", "UnicodeEncodeError", "surrogates not allowed"),
        ("x = '\0'", "", "SyntaxError: source code string cannot contain null bytes"),
        (
            "def f():\n    return 1 / 0\nf()",
            "Traceback (most recent call last):",
            "ZeroDivisionError: division by zero",
        ),
        ("def f(): f()\nf()", "Traceback", "RecursionError: maximum recursion depth exceeded"),
        ("exit(3)", "Traceback", "SystemExit: 3"),
        ("input()", "Traceback", "EOFError: EOF when reading a line"),
        ("'a' * (1 << 32)", "Traceback", "MemoryError"),
        (
            "class E(Exception):\n    def __str__(self): 1 / 0\nraise E",
            "Traceback",
            "E: <exception str() failed>",
        ),
        ("raise BaseException('b')", "Traceback", "BaseException: b"),
        ("1 /\\\n 0; " + "(" * 300 + ")" * 300, "", "SyntaxError: too many nested parentheses"),
    ],
)
async def test_an_error_is_shown_from_the_codes_own_first_line(
    session: PythonSession, code: str, first: str, last: str
) -> None:
    await session.python("x = 5")
    answer = await session.python(code)
    assert answer.startswith(first)
    assert answer.endswith(last)
    assert "<string>" not in answer  # the session's own program
    assert await session.python("x") == "5"


async def test_slow_code_is_interrupted_and_the_variables_stay(session: PythonSession, host: Host) -> None:
    session.timeout_s = 0.4
    await session.python("x = 5")
    answer = await session.python("print('before')\nwhile True: pass")
    assert answer.startswith("before\nTraceback")
    assert answer.endswith("KeyboardInterrupt\n[The code took longer than 0.4 s and was interrupted.]")
    assert await session.python("x") == "5"
    assert host.counters == {"python_timeouts": 1}


async def test_code_that_cannot_be_interrupted_is_ended(session: PythonSession) -> None:
    await session.python("x = 5")
    session.timeout_s = 0.4
    stubborn = "import time\nwhile True:\n    try: time.sleep(600)\n    except BaseException: pass"
    note = "[The code took longer than 0.4 s. The Python session was ended with it.]"
    assert await session.python(stubborn) == f"{note}\n{LOST}"
    session.timeout_s = 20.0
    assert (await session.python("x")).endswith("NameError: name 'x' is not defined")


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(4)", "exit 4"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
    ],
)
async def test_the_sessions_end_is_told(session: PythonSession, code: str, how: str) -> None:
    assert await session.python(code) == f"[The Python session has ended: {how}.]\n{LOST}"
    assert await session.python("1") == "1"


async def test_code_that_takes_its_streams_away_harms_itself_alone(session: PythonSession) -> None:
    await session.python(
        "import os, sys\nsys.stdout = sys.stderr = sys.stdin = None\nos.close(1); os.close(2)"
    )
    assert "[" in await session.python("print('x')")
    await session.close()
    assert await session.python("print('x')") == "x"


async def test_a_model_calls_it(session: PythonSession) -> None:
    assert await call(session, "python", '{"code": "1 + 1"}') == "2"


async def test_calls_at_once_are_served_one_after_the_other(session: PythonSession) -> None:
    await session.python("x = []")
    await asyncio.gather(*(session.python(f"x.append({n})") for n in range(4)))
    assert await session.python("x") == "[0, 1, 2, 3]"


async def test_a_dead_sandbox_is_not_the_models_mistake(session: PythonSession, host: Host) -> None:
    await (await host.sandbox()).close()
    with pytest.raises(SandboxDead):
        await session.python("1")
