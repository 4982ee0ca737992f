"""Pictures and helpers shared by the tests of images."""

import io

import numpy as np
import pytest
from PIL import Image

from ecokv_cli.errors import InputError
from ecokv_cli.sample.images import load_image

WIDTH, HEIGHT = 37, 23


def gradient(width=WIDTH, height=HEIGHT):
    """An RGB picture whose pixels are all told apart."""
    y, x = np.mgrid[0:height, 0:width]
    red, green, blue = 255 * x / max(width - 1, 1), 255 * y / max(height - 1, 1), (7 * x + 11 * y) % 256
    return Image.fromarray(np.stack([red, green, blue], axis=-1).astype(np.uint8))


def encode(image, file_format, **options):
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def refused(path, error=InputError, **options):
    """The one line that refuses `path`."""
    with pytest.raises(error) as caught:
        load_image(path, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def pixels(loaded):
    return np.asarray(loaded.image)
