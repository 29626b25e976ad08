from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.unit.vime_tools.hosts import Host, call
from vime_agents.errors import ConfigError, ToolError
from vime_agents.tools import run_off_loop
from vime_tools.document_search import DocumentIndex, DocumentSearch, document_search

ANIMALS = """\
Animals

The cat sleeps. The cat eats.


The dog barks at the cat.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "animals.md").write_text(ANIMALS)
    (tmp_path / "sub" / "long.txt").write_text(
        "\n\n".join(f"Paragraph {n}: " + "word " * 50 for n in range(9))
    )
    (tmp_path / "sub" / "été.txt").write_text("L'ÉTÉ est chaud.\n")
    (tmp_path / "bytes.rst").write_bytes(b"broken \xff bytes\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "code.py").write_text("the cat, in a file of another kind")
    (tmp_path / ".hidden.txt").write_text("the cat, hidden")
    (tmp_path.parent / "outside.txt").write_text("the cat, outside")
    (tmp_path / "link.txt").symlink_to(tmp_path.parent / "outside.txt")
    return tmp_path


@pytest.fixture
def search(folder: Path) -> DocumentSearch:
    return document_search(folder)(Host())


async def test_passages_come_with_their_document_and_line(search: DocumentSearch) -> None:
    assert (
        await call(search, "search", '{"query": "BARKS!"}') == f"[animals.md, from line 1]\n{ANIMALS.strip()}"
    )
    assert await call(search, "search", '{"query": "été"}') == "[sub/été.txt, from line 1]\nL'ÉTÉ est chaud."
    answer = await call(search, "search", '{"query": "broken"}')
    assert answer == "[bytes.rst, from line 1]\nbroken \ufffd bytes"
    for number, line in ((0, 1), (4, 9), (8, 17)):  # two paragraphs of 52 words make a passage
        answer = await call(search, "search", f'{{"query": "{number}", "limit": 1}}')
        assert answer.startswith(f"[sub/long.txt, from line {line}]\nParagraph {number}: word")


async def test_a_document_is_read_by_its_name(search: DocumentSearch) -> None:
    assert await call(search, "read_document", '{"document": "animals.md"}') == ANIMALS
    answer = await call(search, "read_document", '{"document": "animals.md", "first_line": 6}')
    assert answer == "The dog barks at the cat.\n"
    search.max_lines = 2
    answer = await call(search, "read_document", '{"document": "animals.md", "first_line": 2}')
    assert answer == "\nThe cat sleeps. The cat eats.\n[animals.md goes on to line 7]"


def test_the_order_is_that_of_bm25(tmp_path: Path) -> None:
    texts = {"a": "cat cat dog", "b": "cat dog dog dog bird bird", "c": "fish", "d": "bird fish cat"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)

    def score(name: str, query: list[str]) -> float:
        # Robertson and Zaragoza (2009), as Lucene writes it: k1 = 1.5, b = 0.75. Names are part of a passage.
        words = {n: [n, "txt", *t.split()] for n, t in texts.items()}
        mean = sum(map(len, words.values())) / len(words)
        total = 0.0
        for word in query:
            df = sum(word in w for w in words.values())
            tf = words[name].count(word)
            idf = math.log(1 + (len(words) - df + 0.5) / (df + 0.5))
            total += idf * tf / (tf + 1.5 * (1 - 0.75 + 0.75 * len(words[name]) / mean))
        return total

    index = DocumentIndex(tmp_path)
    for query in (["cat"], ["bird"], ["bird", "dog"], ["fish", "cat", "cat"]):
        expected = sorted((n for n in texts if score(n, query) > 0), key=lambda n: -score(n, query))
        assert [p.document[0] for p in index.search(" ".join(query), 9)] == expected


@pytest.mark.parametrize(
    "query", ["", "zebra", "\\ud800\\u0000", "....", "hidden", "outside", "kind", "' OR x=x --"]
)
async def test_what_is_not_there_is_not_found(search: DocumentSearch, query: str) -> None:
    assert await call(search, "search", f'{{"query": "{query}"}}') == "[no passage has any of these words]"


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("search", '{"query": "cat", "limit": 0}', "limit must be 1 to 20"),
        ("search", '{"query": "cat", "limit": 21}', "limit must be 1 to 20"),
        ("search", '{"query": 3}', "valid string"),
        ("search", '{"query": "' + "x" * 10_001 + '"}', "10001 characters, at most 10000"),
        ("read_document", '{"document": "nope.md"}', "no document 'nope.md'"),
        ("read_document", '{"document": "../outside.txt"}', "no document"),
        ("read_document", '{"document": "link.txt"}', "no document"),
        ("read_document", '{"document": "code.py"}', "no document"),
        ("read_document", '{"document": "a\\u0000\\ud800"}', "no document"),
        ("read_document", '{"document": "animals.md", "first_line": 8}', "lines 1 to 7"),
        ("read_document", '{"document": "animals.md", "first_line": 0}', "lines 1 to 7"),
    ],
)
async def test_mistakes_are_told(search: DocumentSearch, tool: str, arguments: str, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        await search.tools[tool].call(arguments, run_off_loop)


def test_a_folder_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        document_search(tmp_path / "nope")(Host())
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ConfigError, match=r"has no text in files that end with \.txt, \.md, \.rst"):
        document_search(tmp_path)(Host())


def test_one_index_serves_all(folder: Path) -> None:
    assert document_search(folder)(Host())._index is document_search(str(folder))(Host())._index
