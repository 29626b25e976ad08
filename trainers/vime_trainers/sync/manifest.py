"""Do the tensors of an update match the checkpoint that the engine serves?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_TIED = "lm_head.weight"


def check_manifest(
    served: Mapping[str, tuple[int, ...]], update: Mapping[str, tuple[int, ...]], *, tied: bool
) -> None:
    """Compare names and shapes.

    Args:
        served: Name -> shape in the checkpoint that the engine was started with.
        update: Name -> shape in the update.
        tied: The output layer shares the embedding matrix: its own entry may be there or not.

    Raises:
        ValueError: no tensors at all, or missing, unknown or misshapen ones; names the first of them.
    """
    if not update:
        raise ValueError("the update holds no tensor")
    optional = {_TIED} if tied else set()
    if missing := served.keys() - update.keys() - optional:
        raise ValueError(f"the update lacks {len(missing)} of {len(served)} tensors: {_some(missing)}")
    if extra := update.keys() - served.keys() - optional:
        raise ValueError(f"the update holds {len(extra)} tensors that the engine does not: {_some(extra)}")
    for name in served.keys() & update.keys():
        if served[name] != update[name]:
            raise ValueError(f"tensor {name} has shape {update[name]}, the engine serves {served[name]}")


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (", ..." if len(ordered) > 3 else "")
