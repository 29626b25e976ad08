"""TextToSql-v0: answer a question about a small shop with one SQLite query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vime_agents.env import ToolEnv
from vime_agents.errors import ToolError
from vime_agents.messages import Message, assistant, tool_call
from vime_agents.tools import tool
from vime_envs.sql_shop import CATEGORIES, CITIES, NUM_SHOPS, SCHEMA, STATUSES, QueryError, run_query

SHOWN_ROWS = 20
_BLOCK = re.compile(r"```(?:sql)?\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_Template = Callable[[np.random.Generator], "tuple[str, str, bool]"]
"""Question, query, whether the order of its rows is asked for."""


def _customers_of_a_city(rng: np.random.Generator) -> tuple[str, str, bool]:
    city = rng.choice(CITIES)
    return (
        f"The names of all customers in {city}.",
        f"SELECT name FROM customers WHERE city = '{city}'",
        False,
    )


def _orders_by_status(rng: np.random.Generator) -> tuple[str, str, bool]:
    month = f"2024-{rng.integers(1, 13):02d}"
    return (
        f"How many orders of {month} have which status? Give status and number, for statuses that occur.",
        f"SELECT status, COUNT(*) FROM orders WHERE day LIKE '{month}-%' GROUP BY status",
        False,
    )


def _cheap_products(rng: np.random.Generator) -> tuple[str, str, bool]:
    category, cents = rng.choice(CATEGORIES), int(rng.integers(8, 40)) * 100
    return (
        f"Name and price of the products of category {category} that cost less than {cents} cents, the "
        "cheapest "
        "first, and of equal price in alphabetical order.",
        f"SELECT name, cents FROM products WHERE category = '{category}' AND cents < {cents} ORDER BY "
        "cents, name",
        True,
    )


def _revenue(rng: np.random.Generator) -> tuple[str, str, bool]:
    status = rng.choice(STATUSES)
    return (
        f"For each category: how many cents do its products in orders with the status {status} cost in all? "
        "Give category and cents, for categories that occur.",
        "SELECT p.category, SUM(l.pieces * p.cents) FROM lines l JOIN products p ON p.id = l.product_id "
        f"JOIN orders o ON o.id = l.order_id WHERE o.status = '{status}' GROUP BY p.category",
        False,
    )


def _without_orders(rng: np.random.Generator) -> tuple[str, str, bool]:
    city, status = rng.choice(CITIES), rng.choice(STATUSES)
    return (
        f"The names of the customers in {city} who have no order with the status {status}.",
        f"SELECT name FROM customers WHERE city = '{city}' AND id NOT IN "
        f"(SELECT customer_id FROM orders WHERE status = '{status}')",
        False,
    )


def _busiest(rng: np.random.Generator) -> tuple[str, str, bool]:
    k, status = int(rng.integers(2, 8)), rng.choice(STATUSES)
    return (
        f"The {k} customers with the most orders of status {status}: name and number of those orders, the "
        "most "
        "first, and of equal numbers in alphabetical order.",
        "SELECT c.name, COUNT(*) AS n FROM customers c JOIN orders o ON o.customer_id = c.id "
        f"WHERE o.status = '{status}' GROUP BY c.id ORDER BY n DESC, c.name LIMIT {k}",
        True,
    )


def _pieces_of_an_order(rng: np.random.Generator) -> tuple[str, str, bool]:
    city = rng.choice(CITIES)
    return (
        f"How many pieces does an order of a customer in {city} have on average? Pieces of all lines of an "
        "order "
        "count together.",
        "SELECT AVG(n) FROM (SELECT SUM(l.pieces) AS n FROM orders o JOIN customers c ON c.id = "
        "o.customer_id "
        f"JOIN lines l ON l.order_id = o.id WHERE c.city = '{city}' GROUP BY o.id)",
        False,
    )


def _bought_in(rng: np.random.Generator) -> tuple[str, str, bool]:
    city, category = rng.choice(CITIES), rng.choice(CATEGORIES)
    return (
        f"The names of the products of category {category} that customers in {city} have ordered, each once.",
        "SELECT DISTINCT p.name FROM products p JOIN lines l ON l.product_id = p.id JOIN orders o "
        "ON o.id = l.order_id JOIN customers c ON c.id = o.customer_id "
        f"WHERE c.city = '{city}' AND p.category = '{category}'",
        False,
    )


def _of_many_categories(rng: np.random.Generator) -> tuple[str, str, bool]:
    k, city = int(rng.integers(2, 4)), rng.choice(CITIES)
    return (
        f"The names of the customers in {city} whose orders hold products of at least {k} categories.",
        "SELECT c.name FROM customers c JOIN orders o ON o.customer_id = c.id JOIN lines l ON l.order_id = "
        "o.id "
        f"JOIN products p ON p.id = l.product_id WHERE c.city = '{city}' GROUP BY c.id "
        f"HAVING COUNT(DISTINCT p.category) >= {k}",
        False,
    )


_TEMPLATES: tuple[_Template, ...] = (
    _customers_of_a_city,
    _orders_by_status,
    _cheap_products,
    _revenue,
    _without_orders,
    _busiest,
    _pieces_of_an_order,
    _bought_in,
    _of_many_categories,
)


class TextToSql(ToolEnv):
    """One query; the reward is 1 when it gives the right rows, also on a database that the agent never saw.

    Rows are compared as a multiset, and in order where the question asks for one; names of columns do not
    count.
    """

    max_turns = 10

    def make_task(self, rng: np.random.Generator) -> Mapping[str, Any]:  # noqa: D102
        while True:
            question, sql, ordered = _TEMPLATES[int(rng.integers(len(_TEMPLATES)))](rng)
            first = 0 if self.split == "train" else NUM_SHOPS
            seen, unseen = (first + int(n) for n in rng.choice(NUM_SHOPS, 2, replace=False))
            if run_query(seen, sql) and run_query(unseen, sql):  # nobody is paid for no rows
                break
        return {"question": question, "sql": sql, "ordered": ordered, "seed": seen, "unseen_seed": unseen}

    def prompt(self) -> str:  # noqa: D102
        return (
            f"The database of a shop (SQLite):\n\n{SCHEMA}\nWrite one query that answers this, with no other "
            f"columns than those asked for:\n\n{self.task['question']}\n\nTry queries with the tool, then "
            "reply "
            "with the final one in a block that begins with ```sql. It has to be right for other data too."
        )

    @tool
    def query(self, sql: str) -> str:
        """Run a query, and read its first rows.

        Args:
            sql: one SELECT.
        """
        try:
            rows = run_query(self.task["seed"], sql)
        except QueryError as error:
            raise ToolError(str(error)) from error
        more = f"\n[{len(rows)} rows]" if len(rows) > SHOWN_ROWS else ""
        return "\n".join(" | ".join(map(str, row)) for row in rows[:SHOWN_ROWS]) + more or "[no rows]"

    def score(self, text: str) -> Mapping[str, float | tuple[float, float]]:
        """1 for the right rows on both databases; whether it ran at all is a metric."""
        blocks = _BLOCK.findall(text)
        sql = blocks[-1] if blocks else text
        try:
            found = [run_query(self.task[key], sql) for key in ("seed", "unseen_seed")]
        except QueryError:
            return {"right": 0.0, "ran": (0.0, 0.0)}
        wanted = [run_query(self.task[key], self.task["sql"]) for key in ("seed", "unseen_seed")]
        if not self.task["ordered"]:
            found, wanted = ([sorted(rows, key=repr) for rows in results] for results in (found, wanted))
        return {"right": float(found == wanted), "ran": (1.0, 0.0)}

    def gold(self) -> list[str | Message]:  # noqa: D102
        call = tool_call("query", {"sql": self.task["sql"]}, "gold")
        return [assistant("", [call]), f"```sql\n{self.task['sql']}\n```"]
