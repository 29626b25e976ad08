"""Search a folder of text files by words (BM25).

Needs the package `bm25s`. It runs in our process, on files that the env's author chose, never in a sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from vime_agents.errors import ConfigError, MissingDependencyError, ToolError
from vime_agents.tools import ToolHost, Toolset, tool

PASSAGE_WORDS = 120
"""Paragraphs are put together up to about so many words."""
MAX_QUERY_CHARS = 10_000
SUFFIXES = (".txt", ".md", ".rst")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of a document."""

    document: str
    """Path below the folder, with slashes."""
    first_line: int
    """Counted from 1."""
    text: str


class DocumentIndex:
    """The passages of a folder, ready to be searched. Immutable: files that change later are not seen."""

    def __init__(self, folder: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
        """Read and index everything below `folder`; hidden files, and links that lead out, are left alone.

        Raises:
            ConfigError: no such folder, or no documents in it. MissingDependencyError.
        """
        try:
            import bm25s
        except ImportError as error:
            raise MissingDependencyError("bm25s", "search", "searching documents") from error
        if not folder.is_dir():
            raise ConfigError(f"no folder {folder} with documents to search")
        self.documents = dict(_documents(folder, tuple(suffixes)))
        self.passages = [p for name, text in self.documents.items() for p in _passages(name, text)]
        if not self.passages:
            raise ConfigError(f"folder {folder} has no text in files that end with {', '.join(suffixes)}")
        words = [_words(f"{p.document} {p.text}") for p in self.passages]
        self._vocabulary = {word for ws in words for word in ws}
        self._scorer = bm25s.BM25()
        self._scorer.index(words, show_progress=False)

    def search(self, query: str, limit: int) -> list[Passage]:
        """The best passages first; those without any word of the query are never among them."""
        words = [word for word in _words(query) if word in self._vocabulary]
        if not words:
            return []
        scores = self._scorer.get_scores(words)
        best = sorted(range(len(scores)), key=lambda at: (-scores[at], at))[:limit]
        return [self.passages[at] for at in best if scores[at] > 0]


class DocumentSearch(Toolset):
    """Gives the tools `search` and `read_document`. Made by `document_search(folder)`."""

    max_results: ClassVar[int] = 20
    max_lines: ClassVar[int] = 200
    """That one reading shows."""

    def __init__(self, host: ToolHost, index: DocumentIndex) -> None:
        super().__init__(host)
        self._index = index

    @tool
    def search(self, query: str, limit: int = 5) -> str:
        """Find passages of the documents that have the words of a query.

        Args:
            query: the words to look for; other forms of a word are not found.
            limit: at most so many passages.
        """
        if len(query) > MAX_QUERY_CHARS:
            raise ToolError(f"the query has {len(query)} characters, at most {MAX_QUERY_CHARS}")
        if not 1 <= limit <= self.max_results:
            raise ToolError(f"limit must be 1 to {self.max_results}, got {limit}")
        found = self._index.search(query, limit)
        if not found:
            return "[no passage has any of these words]"
        return "\n\n".join(f"[{p.document}, from line {p.first_line}]\n{p.text}" for p in found)

    @tool
    def read_document(self, document: str, first_line: int = 1) -> str:
        """Read a document.

        Args:
            document: its name, as the search gives it.
            first_line: where to begin, counted from 1.
        """
        text = self._index.documents.get(document)
        if text is None:
            raise ToolError(f"there is no document {document!r:.200}; take a name that the search gives")
        lines = text.split("\n")
        if not 1 <= first_line <= len(lines):
            raise ToolError(f"{document} has lines 1 to {len(lines)}; there is no line {first_line}")
        last = first_line - 1 + self.max_lines
        shown = "\n".join(lines[first_line - 1 : last])
        return shown if last >= len(lines) else f"{shown}\n[{document} goes on to line {len(lines)}]"


def document_search(folder: str | Path) -> Callable[[ToolHost], DocumentSearch]:
    """For `ToolEnv.toolsets`. The index is made once in a process, by the first env, and shared."""
    return lambda host: DocumentSearch(host, _index(Path(folder).resolve()))


@cache
def _index(folder: Path) -> DocumentIndex:
    return DocumentIndex(folder)


def _documents(folder: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    root = folder.resolve()
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        hidden = any(part.startswith(".") for part in name.parts)
        if (
            not hidden
            and path.suffix.lower() in suffixes
            and path.is_file()
            and path.resolve().is_relative_to(root)
        ):
            yield name.as_posix(), path.read_text(encoding="utf-8", errors="replace")


def _passages(document: str, text: str) -> Iterator[Passage]:
    """Paragraphs, put together while they are short."""
    first, held, num_words = 1, [], 0
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        words = len(paragraph.split())
        if words and held and num_words + words > PASSAGE_WORDS:
            yield Passage(document=document, first_line=first, text="".join(held).strip())
            held, num_words = [], 0
        if words and not held:
            first = line + len(paragraph) - len(paragraph.lstrip("\n"))
        if words or held:
            held.append(paragraph)
        num_words += words
        line += paragraph.count("\n")
    if num_words:
        yield Passage(document=document, first_line=first, text="".join(held).strip())


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
