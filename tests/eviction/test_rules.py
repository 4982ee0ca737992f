"""Every rule against the naive reference, on several random layers."""

import pytest
from eviction_rules import CHECKS


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", CHECKS)
def test_rule_equals_the_naive_reference(name, seed):
    CHECKS[name](seed)
