"""Rows -> which micro-batch of which rank they are in. Pure: every rank makes the same plan by itself.

Rows are first dealt to the data-parallel ranks by what they cost, then each rank's rows to as few
micro-batches as hold them, the same number on every rank: a rank with fewer would leave the others waiting
in a collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vime_agents.errors import ConfigError
from vime_trainers.batching.balance import balanced_parts
from vime_trainers.batching.cost import LENGTH, RowCost
from vime_trainers.batching.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where every row goes."""

    ranks: tuple[tuple[tuple[int, ...], ...], ...]
    """[rank][micro-batch] indices of its rows, longest first. Costly micro-batches come first, so that the
    n-th of every rank take about equally long. Where rows are short, some may be empty."""
    efficiency: float
    """Tokens of rows / tokens computed, padding included."""
    imbalance: float
    """Cost of the costliest rank / mean cost of a rank."""

    @property
    def num_micro_batches(self) -> int:
        """Of every rank."""
        return len(self.ranks[0])


def alignment(cp_size: int) -> int:
    """Rows are padded to a multiple of this: context-parallel ranks share a row in 2 * cp_size chunks."""
    return 2 * cp_size if cp_size > 1 else 1


def longest_row(max_tokens: int, align: int = 1) -> int:
    """Most tokens of a row that fits into a micro-batch; its last one is predicted and not read."""
    return max_tokens // align * align + 1


def plan(
    rows: Sequence[Row],
    *,
    max_tokens: int,
    num_ranks: int = 1,
    align: int = 1,
    cost: RowCost = LENGTH,
) -> Plan:
    """Balance `rows` over `num_ranks` by their `cost`, and pack each rank's into micro-batches.

    Args:
        rows: Those without inputs go nowhere.
        max_tokens: Most tokens of a micro-batch, padding of rows included.
        num_ranks: Data-parallel ranks.
        align: Rows are padded to a multiple of it, see `alignment`.
        cost: Of a row; the default takes its length.

    Raises:
        ConfigError: a row is longer than `max_tokens`.
    """
    sizes = [-(-len(row.inputs) // align) * align for row in rows]
    for row, size in zip(rows, sizes, strict=True):
        if size > max_tokens:
            raise ConfigError(
                f"{row.id} needs {size} tokens in one forward pass, but --max-tokens-per-gpu allows "
                f"{max_tokens} on each rank (times --context-parallel-size): raise one of them, limit the "
                "episodes' length, or choose what happens by --oversized-rows"
            )
    costs = [cost(size, int(row.mask.sum())) for row, size in zip(rows, sizes, strict=True)]
    used = sorted((i for i in range(len(rows)) if sizes[i]), key=lambda i: (-costs[i], i))
    dealt = [[used[i] for i in part] for part in balanced_parts([costs[i] for i in used], num_ranks)]
    packed = [_first_fit([sizes[i] for i in part], max_tokens) for part in dealt]
    count = max(1, *(len(bins) for bins in packed))
    ranks = []
    for part, bins in zip(dealt, packed, strict=True):
        bins = _even([sizes[i] for i in part], count, max_tokens) or bins
        found = [sorted((part[i] for i in each), key=lambda i: (-sizes[i], i)) for each in bins]
        found += [[] for _ in range(count - len(found))]
        found.sort(key=lambda micro: -sum(costs[i] for i in micro))
        ranks.append(tuple(tuple(micro) for micro in found))
    loads = [sum(costs[i] for i in part) for part in dealt]
    computed = sum(sizes)
    return Plan(
        ranks=tuple(ranks),
        efficiency=sum(len(row.inputs) for row in rows) / computed if computed else 1.0,
        imbalance=max(loads) * num_ranks / sum(loads) if computed else 1.0,
    )


def _first_fit(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Largest first, each into the first bin that holds it: at most 11/9 of the fewest bins, and one more."""
    bins: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        place = next((b for b, left in enumerate(free) if left >= sizes[index]), len(bins))
        if place == len(bins):
            bins.append([])
            free.append(room)
        bins[place].append(index)
        free[place] -= sizes[index]
    return bins


def _even(sizes: Sequence[int], num_bins: int, room: int) -> list[list[int]] | None:
    """Bins of nearly equal size: least memory for their number. None where one would be too full."""
    parts = balanced_parts(sizes, num_bins)
    return parts if all(sum(sizes[i] for i in part) <= room for part in parts) else None
