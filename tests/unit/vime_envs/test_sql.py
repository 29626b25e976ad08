"""TextToSql: gold answers computed again in Python, right and wrong queries, hostile ones."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter, defaultdict
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import vime_agents  # noqa: F401 - registers the ids
from vime_agents.messages import assistant, tool_call
from vime_envs import sql_shop
from vime_envs.sql import TextToSql
from vime_envs.sql_shop import QueryError, run_query


def shop(seed: int) -> dict[str, list[Any]]:
    connection = sqlite3.connect(":memory:")
    sql_shop._fill(connection, np.random.default_rng(seed))
    return {
        t: connection.execute(f"SELECT * FROM {t}").fetchall()
        for t in ("customers", "products", "orders", "lines")
    }


def answer(question: str, data: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    """From the tables, without SQL."""
    city = next((c for c in sql_shop.CITIES if c in question), None)
    category = next((c for c in sql_shop.CATEGORIES if f"category {c} " in question), None)
    status = next((s for s in sql_shop.STATUSES if f"status {s}" in question), None)
    numbers = [int(n) for n in re.findall(r"\d+", question)]
    customers = {c[0]: c for c in data["customers"]}
    products = {p[0]: p for p in data["products"]}
    orders = {o[0]: o for o in data["orders"]}
    local = [c for c in data["customers"] if c[2] == city]
    if question.startswith("The names of all customers"):
        return [(c[1],) for c in local]
    if question.startswith("How many orders of"):
        month = "-".join(re.findall(r"\d+", question)[:2])
        return list(Counter(o[3] for o in data["orders"] if o[2][:7] == month).items())
    if question.startswith("Name and price"):
        found = [(p[1], p[3]) for p in data["products"] if p[2] == category and p[3] < numbers[0]]
        return sorted(found, key=lambda row: (row[1], row[0]))
    if question.startswith("For each category"):
        cents: Counter[str] = Counter()
        for order, product, pieces in data["lines"]:
            if orders[order][3] == status:
                cents[products[product][2]] += pieces * products[product][3]
        return list(cents.items())
    if "have no order" in question:
        return [(c[1],) for c in local if not any(o[1] == c[0] and o[3] == status for o in data["orders"])]
    if "with the most orders" in question:
        counts = Counter(customers[o[1]][1] for o in data["orders"] if o[3] == status)
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: numbers[0]]
    if "on average" in question:
        totals: Counter[int] = Counter()
        for order, _, pieces in data["lines"]:
            if customers[orders[order][1]][2] == city:
                totals[order] += pieces
        return [(round(sum(totals.values()) / len(totals), 6) if totals else None,)]
    return answer_of_baskets(question, data, city, category)


def answer_of_baskets(
    question: str, data: Any, city: str | None, category: str | None
) -> list[tuple[Any, ...]]:
    """Of what customers of a city have bought."""
    customers = {c[0]: c for c in data["customers"]}
    products = {p[0]: p for p in data["products"]}
    buyer = {o[0]: customers[o[1]] for o in data["orders"]}
    bought = defaultdict(set)
    for order, product, _ in data["lines"]:
        if buyer[order][2] == city:
            bought[buyer[order][1]].add(products[product])
    if "each once" in question:
        return [(name,) for name in {p[1] for held in bought.values() for p in held if p[2] == category}]
    least = int(re.findall(r"at least (\d+)", question)[0])
    return [(name,) for name, held in bought.items() if len({p[2] for p in held}) >= least]


def test_gold_gives_what_the_tables_say() -> None:
    tasks = TextToSql(split="train").task_set()
    openings = set()
    for index in range(60):
        task = tasks[index].inputs
        for seed in (task["seed"], task["unseen_seed"]):
            found, wanted = run_query(seed, task["sql"]), answer(task["question"], shop(seed))
            assert wanted
            if task["ordered"]:
                assert found == wanted
            assert Counter(found) == Counter(wanted)
        openings.add(task["question"].split()[0] + task["sql"][:20])
    assert len(openings) >= 7


def play(env: TextToSql, reply: str) -> Any:
    *_, terminated, _, info = env.step(reply)
    assert terminated
    return info["reward_result"]


def env_with(question: str) -> TextToSql:
    env = TextToSql(split="test")
    tasks = env.task_set()
    index = next(i for i in range(200) if tasks[i].inputs["question"].startswith(question))
    env.reset(options={"task": index})
    return env


@pytest.mark.parametrize(
    ("question", "change", "right"),
    [
        ("Name and price", lambda sql: f"```sql\n{sql};\n```\nThat is it.", True),
        (
            "Name and price",
            lambda sql: sql.replace("SELECT name, cents", "SELECT name AS a, cents AS b"),
            True,
        ),
        ("Name and price", lambda sql: sql.replace(" ORDER BY cents, name", " ORDER BY cents DESC"), False),
        ("The names of all", lambda sql: sql + " ORDER BY name DESC", True),
        ("The names of all", lambda sql: f"{sql} UNION ALL {sql}", False),
        ("The names of all", lambda sql: sql.replace("SELECT name", "SELECT name, city"), False),
        ("The names of all", lambda sql: f"```sql\n{sql}\n```\nor\n```sql\nSELECT 1\n```", False),
        ("The names of all", lambda sql: "Ana Berg", False),
        ("The names of all", lambda sql: "", False),
    ],
)
def test_rows_count_and_nothing_else(question: str, change: Any, right: bool) -> None:
    env = env_with(question)
    assert play(env, change(env.task["sql"])).components["right"] == float(right)


def test_rows_that_were_copied_are_wrong_for_other_data() -> None:
    env = env_with("The names of all")
    rows = run_query(env.task["seed"], env.task["sql"])
    copied = " UNION ALL ".join(f"SELECT '{name}'" for (name,) in rows)
    assert Counter(run_query(env.task["seed"], copied)) == Counter(rows)
    result = play(env, copied)
    assert result.components == {"right": 0.0, "ran": 1.0}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DROP TABLE orders", "not authorized"),
        ("DELETE FROM orders", "not authorized"),
        ("INSERT INTO orders VALUES (1, 1, '', '')", "not authorized"),
        ("PRAGMA writable_schema = 1", "not authorized"),
        ("ATTACH '/tmp/x.db' AS x", "not authorized"),
        ("SELECT load_extension('x')", "not authorized"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELEC 1", "syntax error"),
        ("SELECT \0", "null character"),
        ("SELECT '\ud800'", "surrogates"),
        ("SELECT zeroblob(1000000)", "too big"),
        ("SELECT '" + "x" * 20_000 + "'", "too large"),
        ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "cannot be run"),
        (
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n",
            "3000000 steps",
        ),
        ("SELECT COUNT(*) FROM lines a, lines b, lines c, lines d", "3000000 steps"),
        ("SELECT a.pieces FROM lines a, lines b", "more than 1000 rows"),
    ],
)
def test_hostile_queries_are_refused(sql: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        run_query(1, sql)
    assert len(run_query(1, "SELECT * FROM orders")) == 160


def test_the_tool_shows_rows_and_errors() -> None:
    env = TextToSql(split="test")
    env.reset(options={"task": 0})

    def ask(sql: str) -> str:
        observation, *_ = env.step(assistant("", [tool_call("query", {"sql": sql}, "1")]))
        return observation["messages"][0]["content"]

    assert ask("SELECT 1, 'a' UNION ALL SELECT 2, NULL") == "1 | a\n2 | None"
    assert ask("SELECT * FROM orders WHERE 0") == "[no rows]"
    assert ask("SELECT id FROM orders").endswith("20\n[160 rows]")
    assert ask("SELECT what FROM orders") == "Error: the query cannot be run: no such column: what"


def test_gold_gets_the_best_reward_and_hostile_replies_none() -> None:
    env = TextToSql(split="test")
    for index in range(10):
        env.reset(options={"task": index})
        call, last = env.gold()
        env.step(call)
        assert play(env, last).value == 1.0
    for reply in ("DROP TABLE orders", "```sql\n```", "\0\ud800", "SELECT " * 100_000, "9" * 1_000_000):
        env.reset(options={"task": 0})
        assert play(env, reply).components == {"right": 0.0, "ran": 0.0}


def test_gymnasium_finds_nothing_to_say() -> None:
    with gymnasium.make("vime_agents/TextToSql-v0") as env:
        check_env(env.unwrapped)
