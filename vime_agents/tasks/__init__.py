"""Where tasks come from: indexed files, generators, and views of other task sets."""

from vime_agents.tasks.delimited import CsvTaskSet
from vime_agents.tasks.generator import generated
from vime_agents.tasks.hugging_face import HuggingFaceTaskSet
from vime_agents.tasks.jsonl import JsonlTaskSet, load_jsonl
from vime_agents.tasks.load import load_tasks
from vime_agents.tasks.parquet import ParquetTaskSet
from vime_agents.tasks.rows import BadRows, RowRules
from vime_agents.tasks.views import (
    ConcatenatedTaskSet,
    MappedTaskSet,
    MixedTaskSet,
    SubsetTaskSet,
    limited,
    shuffled,
    sliced,
    split_by_id,
)

__all__ = [
    "BadRows",
    "ConcatenatedTaskSet",
    "CsvTaskSet",
    "HuggingFaceTaskSet",
    "JsonlTaskSet",
    "MappedTaskSet",
    "MixedTaskSet",
    "ParquetTaskSet",
    "RowRules",
    "SubsetTaskSet",
    "generated",
    "limited",
    "load_jsonl",
    "load_tasks",
    "shuffled",
    "sliced",
    "split_by_id",
]
