"""Rows -> a Parquet file, a row group at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vime_agents.errors import DatasetError, MissingDependencyError
from vime_agents.storage.exports.json_text import json_line
from vime_agents.storage.exports.rows import COLUMNS, TOKEN_COLUMNS

_GROUP_ROWS = 1000
_GROUP_BYTES = 32 << 20
"""Of JSON text; a row group ends with the row that reaches either."""


def write_parquet(rows: Iterable[Mapping[str, Any]], path: Path, *, tokens: bool) -> None:
    """Write the rows that `episode_row` gave.

    Raises:
        MissingDependencyError: no pyarrow.
        DatasetError: a number that Parquet cannot hold; names the episodes.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise MissingDependencyError("pyarrow", "data", "an export to Parquet") from error
    schema = _schema(pa, tokens=tokens)
    held: list[dict[str, Any]] = []
    num_bytes = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:

        def flush() -> None:
            try:
                writer.write_table(pa.Table.from_pylist(held, schema=schema))
            except (pa.ArrowException, OverflowError) as error:
                raise DatasetError(f"episodes {held[0]['id']} to {held[-1]['id']}: {error}") from error
            held.clear()

        for row in rows:
            line = json_line(row)  # so that both formats hold the same text
            held.append(json.loads(line))
            num_bytes += len(line)
            if len(held) >= _GROUP_ROWS or num_bytes >= _GROUP_BYTES:
                flush()
                num_bytes = 0
        if held:
            flush()


def _schema(pa: Any, *, tokens: bool) -> Any:
    text, number, whole, flag = pa.string(), pa.float64(), pa.int64(), pa.bool_()

    def records(**fields: Any) -> Any:
        return pa.list_(pa.struct(list(fields.items())))

    calls = records(id=text, type=text, function=pa.struct([("name", text), ("arguments", text)]))
    types = {
        **dict.fromkeys(("seed", "attempt", "num_turns", "num_sampled_tokens"), whole),
        **dict.fromkeys(("reward", "started_at", "duration_s"), number),
        "weight_versions": pa.list_(whole),
        "agents": records(
            agent=text,
            policy=text,
            frozen=flag,
            reward=number,
            reward_status=text,
            reward_detail=text,
            status=text,
            stop=text,
            detail=text,
            num_turns=whole,
            num_sampled_tokens=whole,
            num_forks=whole,
        ),
        "components": records(agent=text, name=text, value=number, weight=number),
        "metrics": records(name=text, value=number),
        "messages": records(
            agent=text, turn=whole, role=text, content=text, name=text, tool_calls=calls, tool_call_id=text
        ),
        "segments": records(
            agent=text,
            token_ids=pa.list_(pa.int32()),
            logprobs=pa.list_(pa.float32()),
            loss_mask=pa.list_(flag),
        ),
    }
    columns = [*COLUMNS, *(TOKEN_COLUMNS if tokens else ())]
    return pa.schema([(name, types.get(name, text)) for name in columns])
