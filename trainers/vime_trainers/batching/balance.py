"""Numbers -> parts of nearly equal sums."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def balanced_parts(costs: Sequence[float], num_parts: int) -> list[list[int]]:
    """Indices of `costs` in `num_parts` lists whose sums differ little.

    The largest differencing method (Karmarkar and Karp 1982, "The differencing method of set partitioning",
    UC Berkeley CSD-83-113): the two partial solutions whose parts differ most are joined, the largest part
    of one with the smallest of the other, until one solution is left. Ties go to what came first, so that
    the same numbers give the same parts everywhere.
    """
    if not costs or num_parts == 1:
        return [list(range(len(costs))), *([] for _ in range(num_parts - 1))]
    # (-spread, order, sums from large to small, indices of each part)
    heap: list[tuple[float, int, list[float], list[list[int]]]] = []
    for index, cost in enumerate(costs):
        sums = [float(cost)] + [0.0] * (num_parts - 1)
        heap.append((-(sums[0] - sums[-1]), index, sums, [[index]] + [[] for _ in range(num_parts - 1)]))
    heapq.heapify(heap)
    for order in range(len(costs), 2 * len(costs) - 1):
        (_, _, sums, parts), (_, _, others, other_parts) = heapq.heappop(heap), heapq.heappop(heap)
        joined = [
            (a + b, p + q)
            for a, b, p, q in zip(sums, reversed(others), parts, reversed(other_parts), strict=True)
        ]
        joined.sort(key=lambda part: -part[0])
        sums, parts = [total for total, _ in joined], [indices for _, indices in joined]
        heapq.heappush(heap, (-(sums[0] - sums[-1]), order, sums, parts))
    return heap[0][3]
