"""CSV, Parquet, folders: what they have in common with JSON Lines is tested there."""

from __future__ import annotations

import datetime
import decimal
import pickle
import sys
from pathlib import Path

import pytest

from vime_agents.errors import ConfigError, DatasetError, MissingDependencyError
from vime_agents.task import TaskSet, content_id
from vime_agents.tasks import (
    CsvTaskSet,
    HuggingFaceTaskSet,
    ParquetTaskSet,
    RowRules,
    generated,
    load_tasks,
)


def inputs(tasks: TaskSet) -> list:
    return [dict(tasks[n].inputs) for n in range(len(tasks))]


SKIP = RowRules(on_bad_row="skip")


def test_csv_rows_may_span_lines_and_hold_quotes(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_bytes(
        '\ufeffq,a\r\n"two\nlines, ""quoted""",1\r\n\r\n\u2028é,\r\n'.encode() + b"x" * 200_000 + b",3"
    )
    tasks = CsvTaskSet(path)
    assert inputs(tasks) == [
        {"q": 'two\nlines, "quoted"', "a": "1"},
        {"q": "\u2028é", "a": ""},
        {"q": "x" * 200_000, "a": "3"},
    ]
    assert tasks[1].id == content_id({"q": "\u2028é", "a": ""})
    assert inputs(pickle.loads(pickle.dumps(tasks))) == inputs(tasks)


def test_tsv_is_told_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "tasks.tsv"
    path.write_text("q\ta\n1,5\tx\n")
    assert inputs(load_tasks(path)) == [{"q": "1,5", "a": "x"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"1\n", r"tasks\.csv:3: 1 values for the 2 columns \['q', 'a'\]"),
        (b"1,2,3\n", r"tasks\.csv:3: 3 values for the 2 columns"),
        (b'"a"b,2\n', r"tasks\.csv:3: ',' expected after '\"'"),
        (b"\xff,2\n", r"tasks\.csv:3: not UTF-8"),
    ],
)
def test_a_ragged_or_broken_csv_row_is_named_or_counted(tmp_path: Path, row: bytes, message: str) -> None:
    path = tmp_path / "tasks.csv"
    path.write_bytes(b"q,a\n1,2\n" + row + b"5,6\n")
    with pytest.raises(DatasetError, match=message):
        CsvTaskSet(path)
    tasks = CsvTaskSet(path, SKIP)
    assert inputs(tasks) == [{"q": "1", "a": "2"}, {"q": "5", "a": "6"}]
    assert tasks.bad_rows.count == 1


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "a column without a name"),
        ("q,,a\n", "a column without a name"),
        ("q,a,q\n", "the key 'q' twice"),
    ],
)
def test_a_csv_file_needs_a_header(tmp_path: Path, header: str, message: str) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text(header + "1,2,3\n" if header else "")
    with pytest.raises(DatasetError, match=message):
        CsvTaskSet(path)


def test_a_quote_that_is_never_closed_does_not_swallow_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vime_agents.tasks.delimited.MAX_ROW_BYTES", 100)
    path = tmp_path / "tasks.csv"
    path.write_text('q,a\n1,2\n"open,3\n' + "x,y\n" * 100)
    with pytest.raises(DatasetError, match=r"tasks\.csv:3: longer than 100 bytes: is a quote missing\?"):
        CsvTaskSet(path)


def parquet(path: Path, columns: dict, **options) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table(columns), path, **options)
    return path


def test_parquet_rows_are_read_group_by_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(
        tmp_path / "tasks.parquet",
        {"n": list(range(1000)), "deep": [{"a": [1, None]}] * 1000},
        row_group_size=7,
    )
    monkeypatch.setattr("vime_agents.tasks.parquet._CACHED_BYTES", 300)
    tasks = ParquetTaskSet(path)
    order = [999, 0, 500, 6, 7, 13, 14]
    assert [tasks[n].inputs for n in order] == [{"n": n, "deep": {"a": [1, None]}} for n in order]
    assert tasks[5].id == content_id({"n": 5, "deep": {"a": [1, None]}})
    assert len(tasks._cache) <= 2
    assert inputs(pickle.loads(pickle.dumps(tasks))) == inputs(tasks)


def test_values_of_tables_become_what_json_has_or_are_refused(tmp_path: Path) -> None:
    path = parquet(
        tmp_path / "a.parquet",
        {
            "day": [datetime.date(2026, 1, 2), datetime.date(2026, 1, 3)],
            "price": [decimal.Decimal("1.10"), decimal.Decimal("2.00")],
            "x": [0.5, float("nan")],
        },
    )
    with pytest.raises(DatasetError, match=r"a\.parquet:2: x is nan, which JSON does not have"):
        ParquetTaskSet(path)
    tasks = ParquetTaskSet(path, SKIP)
    assert inputs(tasks) == [{"day": "2026-01-02", "price": "1.10", "x": 0.5}]
    assert tasks.bad_rows.count == 1
    with pytest.raises(DatasetError, match=r"b\.parquet:1: image is a bytes"):
        ParquetTaskSet(parquet(tmp_path / "b.parquet", {"image": [b"\x89PNG"]}))


def test_what_is_no_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    path.write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(DatasetError, match=r"tasks\.parquet: not a Parquet file"):
        ParquetTaskSet(path)


@pytest.mark.parametrize("package", ["pyarrow", "datasets"])
def test_a_missing_package_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    (tmp_path / "tasks.parquet").touch()
    (tmp_path / "state.json").touch()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"needs the package '{package}'.*vime-agents\[data\]"):
        load_tasks(tmp_path / "tasks.parquet" if package == "pyarrow" else tmp_path)


def test_a_folder_of_hugging_face_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"q": ["a", "b"], "when": [datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)] * 2}
    train = datasets.Dataset.from_dict(rows)
    test = datasets.Dataset.from_dict({"q": ["c", None]})
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(tmp_path / "both"))
    train.save_to_disk(str(tmp_path / "one"))
    expected = [{"q": q, "when": "2026-01-02T03:04:00+00:00"} for q in "ab"]
    assert inputs(load_tasks(tmp_path / "both")) == expected
    assert inputs(HuggingFaceTaskSet(tmp_path / "one", RowRules(split="anything"))) == expected
    with pytest.raises(DatasetError, match=r"both:2: 'q' has no value"):
        load_tasks(tmp_path / "both", split="test", required=["q"])
    with pytest.raises(ConfigError, match=r"both: no split 'dev'; it has test, train"):
        load_tasks(tmp_path / "both", split="dev")


def test_a_folder_of_files_is_read_by_the_names_of_the_splits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "README.md").write_text("train")
    (tmp_path / "data" / "train-00000-of-00002.jsonl").write_text('{"q": 1}\n{"q": 2}\n')
    (tmp_path / "data" / "train-00001-of-00002.jsonl").write_text('{"q": 3}\n{"q": 1}\n')
    (tmp_path / "test.csv").write_text("q\n9\n")
    train = load_tasks(tmp_path)
    assert inputs(train) == [{"q": n} for n in (1, 2, 3, 1)]
    assert [train[n].id for n in (0, 3)] == [content_id({"q": 1}), content_id({"q": 1}) + "-2"]
    assert inputs(load_tasks(tmp_path, split="test")) == [{"q": "9"}]
    with pytest.raises(DatasetError, match=r"no file of the split 'dev'; files of tasks there: \['data/"):
        load_tasks(tmp_path, split="dev")
    (tmp_path / "data" / "train.csv").write_text("q\n1\n")
    with pytest.raises(DatasetError, match="files of several formats"):
        load_tasks(tmp_path)


@pytest.mark.parametrize(
    ("cut", "limit", "expected"),
    [
        ("", None, range(10)),
        ("@[2:5]", None, range(2, 5)),
        ("@[-3:]", None, range(7, 10)),
        ("@[:4]", 2, range(2)),
        ("", 99, range(10)),
    ],
)
def test_a_path_may_carry_a_slice(tmp_path: Path, cut: str, limit: int | None, expected: range) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(10)))
    assert inputs(load_tasks(f"{path}{cut}", limit=limit)) == [{"n": n} for n in expected]


def test_what_cannot_be_loaded_says_what_can(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tasks are read from \.jsonl, .*\.parquet"):
        load_tasks(tmp_path / "tasks.xlsx")
    path = tmp_path / "tasks.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"'tasks\.jsonl\[5:\]' is empty; 'tasks\.jsonl' has 1 tasks"):
        load_tasks(f"{path}@[5:]")
    with pytest.raises(ConfigError, match="limit must be >= 1, got 0"):
        load_tasks(path, limit=0)


def endless():
    n = 0
    while True:
        yield {"n": n, "x": float("nan") if n == 1 else 0.5}
        n += 1


def test_a_generators_rows_become_tasks() -> None:
    with pytest.raises(DatasetError, match="endless:2: x is nan"):
        generated(endless, limit=3)
    tasks = generated(endless, limit=3, on_bad_row="skip", split="test")
    assert inputs(tasks) == [{"n": 0, "x": 0.5}, {"n": 2, "x": 0.5}]
    assert (tasks.name, tasks[0].split) == ("endless", "test")


def test_an_endless_generator_needs_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vime_agents.tasks.generator._MAX_ROWS", 5)
    with pytest.raises(ConfigError, match="yields more than 5 rows: give `limit`"):
        generated(lambda: ({"n": n} for n in iter(int, 1)))
