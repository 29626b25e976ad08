"""`--price` -> dollars."""

import pytest

from vime_agents.config.prices import Prices
from vime_agents.errors import ConfigError


def test_tokens_cost_what_a_million_of_them_does():
    prices = Prices.parse("0.25, 2")
    # 4 * 0.25 + 1.5 * 2
    assert prices.cost(4_000_000, 1_500_000) == pytest.approx(4.0)
    assert prices.cost(4_000_000, 0, cached_tokens=3_000_000) == pytest.approx(1.0)


def test_cached_tokens_have_a_price_of_their_own_where_it_is_given():
    # 1 * 0.25 + 3 * 0.025
    assert Prices.parse("0.25,2,0.025").cost(4_000_000, 0, cached_tokens=3_000_000) == pytest.approx(0.325)


@pytest.mark.parametrize("text", ["", "1", "1,", "1,2,3,4", "a,b", "-1,2", "nan,1", "inf,1", "$1,$2"])
def test_what_is_no_price_is_refused_with_the_form(text):
    with pytest.raises(ConfigError, match="--price: must be IN,OUT or IN,OUT,CACHED, dollars for a million"):
        Prices.parse(text)
