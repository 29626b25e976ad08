"""Sizes mean what they mean to Hugging Face's libraries."""

import pytest

from vime_agents.config.sizes import bytes_of


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5_000_000_000), ("500mb", 500_000_000), (" 1.5 KB", 1500), ("7B", 7), ("2TB", 2e12)],
)
def test_units_are_powers_of_ten(text, size):
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "5", "GB", "-5GB", "0GB", "0.1B", "5GiB", "5 G B", "nanGB"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="a size such as 5GB"):
        bytes_of(text)
