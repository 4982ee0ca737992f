"""What cannot be analysed is refused by name and reason, most of it before any weights are read."""

import pytest
from tiny_refused import REFUSED

from ecokv_cli.errors import ModelError
from ecokv_cli.models.loading import load_model


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_analysed_is_refused_by_name_and_reason(name, tmp_path):
    write, message = REFUSED[name]
    write(tmp_path)
    with pytest.raises(ModelError, match=f"^{message}") as caught:
        load_model(str(tmp_path))
    assert "\n" not in str(caught.value)
    assert "choose another model" in str(caught.value)
