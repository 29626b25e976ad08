"""The runner as one program, though it is written in several files."""

from __future__ import annotations
import __future__

import marshal
import py_compile
import tempfile
from functools import cache
from pathlib import Path
from types import CodeType

_MODULES = ("runner_frames", "runner_files", "runner_tree", "runner_start", "runner_spawn", "runner")
"""In the order in which they import each other; the last one has `main`."""
_LOADER = """\
import marshal, sys
package = sys.modules["vime_sandboxes"] = type(sys)("vime_sandboxes")
for name, body in {modules!r}:
    module = sys.modules["vime_sandboxes." + name] = type(sys)("vime_sandboxes." + name)
    setattr(package, name, module)
    exec({load}, module.__dict__)
module.main()
"""


@cache
def source() -> bytes:
    """As text, for any Python from 3.9 on."""
    texts = [(name, _path(name).read_text(encoding="utf-8")) for name in _MODULES]
    return _LOADER.format(modules=texts, load="compile(body, name, 'exec')").encode()


@cache
def compiled() -> bytes:
    """As a .pyc file for the Python that runs us: compiling it inside would take a third of the start."""
    codes = [(n, marshal.dumps(_code(n))) for n in _MODULES]
    with tempfile.TemporaryDirectory() as folder:
        program, result = Path(folder, "runner.py"), Path(folder, "runner.pyc")
        program.write_text(_LOADER.format(modules=codes, load="marshal.loads(body)"), encoding="utf-8")
        py_compile.compile(str(program), str(result), doraise=True)
        return result.read_bytes()


def _code(module: str) -> CodeType:
    # As a flag, not as a statement, which would have `__future__` loaded.
    text = _path(module).read_text(encoding="utf-8").replace("from __future__ import annotations\n", "\n", 1)
    return compile(text, module, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)


def _path(module: str) -> Path:
    return Path(__file__).with_name(f"{module}.py")
