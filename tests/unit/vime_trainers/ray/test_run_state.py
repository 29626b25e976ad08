"""What a run knows beside its trainer comes back with a checkpoint."""

import pytest

from vime_agents.errors import CheckpointError
from vime_agents.learning.advantages import RoleBaselines
from vime_trainers.ray.run_state import FILE, load_run_state, save_run_state


def test_a_resumed_run_goes_on_with_the_baselines_that_were_saved(tmp_path):
    saved, loaded = RoleBaselines(), RoleBaselines()
    saved.of("x")([1.0, 0.0, 0.3])
    saved.of("o")([-1.0])
    save_run_state(tmp_path, {"role_baselines": saved})
    load_run_state(tmp_path, {"role_baselines": loaded})
    assert loaded.state_dict() == saved.state_dict()
    assert loaded.of("x")([1.0]).tolist() == saved.of("x")([1.0]).tolist()


@pytest.mark.parametrize(
    "text", [None, "", "{}", "[]", '{"role_baselines": 3}', '{"role_baselines": {"x": "1"}}']
)
def test_a_missing_or_broken_file_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with pytest.raises(CheckpointError, match=r"run_state\.json|role 'x'"):
        load_run_state(tmp_path, {"role_baselines": RoleBaselines()})
