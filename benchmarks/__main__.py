"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks NAME` runs one."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> dict[str, str]:
    """Name -> first line of its docstring."""
    found = {}
    for file in sorted(FOLDER.glob("[a-z]*.py")):
        if file.stem != "measure":
            found[file.stem.replace("_", "-")] = (ast.get_docstring(ast.parse(file.read_text())) or "").split(
                "\n"
            )[0]
    return found


def main(argv: list[str]) -> int:
    """List, or run one."""
    known = names()
    if not argv:
        for name, line in known.items():
            print(f"  make bench-{name:<14} {line}")
        return 0
    if argv[0] not in known:
        print(f"no benchmark {argv[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    sys.argv = [f"benchmarks {argv[0]}", *argv[1:]]  # what is left is the benchmark's own
    importlib.import_module(f"benchmarks.{argv[0].replace('-', '_')}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
