import pytest


@pytest.fixture
def save(tmp_path):
    """Write bytes, or a picture in the format of the name's ending, and return the path."""

    def write(name, content, **options):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content.save(path, **options)
        return path

    return write
