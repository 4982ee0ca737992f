import pytest

from ecokv_cli.geometry import cosines, similarity


@pytest.fixture(params=[5, 4096], ids=["many blocks", "one block"])
def _blocks(request, monkeypatch):
    """Work on few rows at a time, so that small inputs run over several blocks, and as usual."""
    monkeypatch.setattr(similarity, "BLOCK", request.param)
    monkeypatch.setattr(cosines, "_TILE", request.param)
