"""An update that is not the served checkpoint is refused, by name."""

from __future__ import annotations

import pytest

from vime_trainers.sync.manifest import check_manifest

SERVED = {"embed.weight": (8, 4), "layers.0.up.weight": (6, 4), "layers.1.up.weight": (6, 4)}


def test_the_same_names_and_shapes_pass_in_any_order():
    check_manifest(SERVED, dict(reversed(SERVED.items())), tied=False)


def test_nothing_is_not_an_update():
    with pytest.raises(ValueError, match="holds no tensor"):
        check_manifest(SERVED, {}, tied=True)


def test_a_missing_tensor_is_named():
    """Plan 75."""
    update = {name: shape for name, shape in SERVED.items() if "layers.1" not in name}
    with pytest.raises(ValueError, match=r"lacks 1 of 3 tensors: layers\.1\.up\.weight"):
        check_manifest(SERVED, update, tied=False)


def test_an_unknown_tensor_is_named():
    """Plan 75."""
    with pytest.raises(ValueError, match=r"1 tensors that the engine does not: layers\.2\.up\.weight"):
        check_manifest(SERVED, SERVED | {"layers.2.up.weight": (6, 4)}, tied=False)


def test_another_shape_is_named_with_both():
    """Plan 75."""
    with pytest.raises(ValueError, match=r"embed\.weight has shape \(4, 8\), the engine serves \(8, 4\)"):
        check_manifest(SERVED, SERVED | {"embed.weight": (4, 8)}, tied=False)


@pytest.mark.parametrize("in_served", [False, True])
@pytest.mark.parametrize("in_update", [False, True])
def test_a_tied_output_layer_may_be_there_or_not(in_served: bool, in_update: bool):
    head = {"lm_head.weight": (8, 4)}
    served = SERVED | (head if in_served else {})
    update = SERVED | (head if in_update else {})
    check_manifest(served, update, tied=True)
    if in_served != in_update:
        with pytest.raises(ValueError, match=r"lm_head\.weight"):
            check_manifest(served, update, tied=False)
