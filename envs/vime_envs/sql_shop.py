"""A shop's database, made from a seed, and queries of others that can only read it, and only so much."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache

import numpy as np

SCHEMA = """\
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, category TEXT, cents INTEGER);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, day TEXT, status TEXT);
CREATE TABLE lines (order_id INTEGER, product_id INTEGER, pieces INTEGER);
-- day: like 2024-05-31; status: open, paid, sent or returned; an order has one line for each of its products
"""
CITIES = ("Arles", "Basel", "Cork", "Delft", "Evora", "Fano")
CATEGORIES = ("garden", "kitchen", "office", "toys")
STATUSES = ("open", "paid", "sent", "returned")

NUM_SHOPS = 200
"""Of each split."""
MAX_ROWS = 1000
MAX_VALUE = 1000
"""Bytes of a value that a query makes."""
MAX_STEPS = 3_000_000
"""Instructions of SQLite's virtual machine; with MAX_VALUE they bound the memory too."""
MAX_SECONDS = 5.0
_STEPS_BETWEEN_LOOKS = 1000
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

_FIRST = "Ana Bo Cy Dora Eve Finn Gus Hanna Ida Jon".split()  # noqa: SIM905
_LAST = "Berg Costa Dahl Engel Falk Grau".split()  # noqa: SIM905
_NAMES = "basket board bottle bowl box brush chair clock cup frame knife lamp".split()  # noqa: SIM905

Row = tuple[object, ...]


class QueryError(Exception):
    """A query that cannot be run, or takes too much; worded for whoever wrote it."""


def run_query(seed: int, sql: str) -> list[Row]:
    """The rows of one SELECT on the shop of this seed; real numbers are rounded to six places.

    Raises:
        QueryError: no valid single SELECT, more than MAX_ROWS rows, or over a limit.
    """
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as shop:
        shop.deserialize(_shop(seed))
        _lock(shop)
        try:
            cursor = shop.execute(sql)
            rows = cursor.fetchmany(MAX_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: NUL, lone surrogates
            if "interrupted" in str(error):
                raise QueryError(f"the query takes more than {MAX_STEPS} steps") from error
            raise QueryError(f"the query cannot be run: {error}"[:500]) from error
        if cursor.description is None:
            raise QueryError("there is no query")
    if len(rows) > MAX_ROWS:
        raise QueryError(f"the query gives more than {MAX_ROWS} rows")
    return [tuple(round(value, 6) if isinstance(value, float) else value for value in row) for row in rows]


@lru_cache(maxsize=2 * NUM_SHOPS)
def _shop(seed: int) -> bytes:
    """The file of a database; about 30 kB."""
    with closing(sqlite3.connect(":memory:")) as shop:
        _fill(shop, np.random.default_rng(seed))
        return shop.serialize()


def _lock(shop: sqlite3.Connection) -> None:
    """From here on nothing but reading, within limits."""
    shop.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
    shop.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 10_000)
    shop.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100)
    shop.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    shop.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
    looks, end = 0, time.monotonic() + MAX_SECONDS

    def is_over() -> bool:
        nonlocal looks
        looks += 1
        return looks * _STEPS_BETWEEN_LOOKS > MAX_STEPS or time.monotonic() > end

    shop.set_progress_handler(is_over, _STEPS_BETWEEN_LOOKS)


def _fill(shop: sqlite3.Connection, rng: np.random.Generator) -> None:
    def pick(values: Sequence[str]) -> str:
        return values[int(rng.integers(len(values)))]

    shop.executescript(SCHEMA)
    people = rng.permutation([f"{first} {last}" for first in _FIRST for last in _LAST])[:40]
    customers = [(n, str(name), pick(CITIES)) for n, name in enumerate(people, 1)]
    things = rng.permutation([f"{kind} {name}" for kind in ("small", "large") for name in _NAMES])
    products = [
        (n, str(name), pick(CATEGORIES), int(rng.integers(5, 60)) * 50) for n, name in enumerate(things, 1)
    ]
    orders, lines = [], []
    for n in range(1, 161):
        day = f"2024-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}"
        orders.append((n, int(rng.integers(1, len(customers) + 1)), day, pick(STATUSES)))
        chosen = rng.choice(len(products), int(rng.integers(1, 5)), replace=False)
        lines += [(n, int(product) + 1, int(rng.integers(1, 6))) for product in chosen]
    for table, rows in (
        ("customers", customers),
        ("products", products),
        ("orders", orders),
        ("lines", lines),
    ):
        marks = ", ".join("?" * len(rows[0]))
        shop.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    shop.commit()
