"""Images the user hands in: decoded completely and made upright 8-bit RGB, or refused in one line."""

from __future__ import annotations

import hashlib
import io
import math
import struct
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from ecokv_cli.errors import EcokvError, InputError, UsageError
from ecokv_cli.sample.sources import display, read_source

if TYPE_CHECKING:
    import os

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow formats that are opened. Pillow would start Ghostscript for an EPS, and half decode a cut-off JPEG 2000."""

MAX_ASPECT = 200
"""Aspect ratios from here on are refused, as the processors of the Qwen family would do later."""

_FOREIGN = ((b"%pdf-", "a PDF document"), (b"<svg", "an SVG drawing"), (b"<html", "a web page"))
_OPAQUE = 255
_MOST_PIXELS = 1 << 26
"""Nothing is scaled up beyond this; Pillow refuses to read images a little larger."""


@dataclass(frozen=True)
class LoadedImage:
    """An image ready for a processor, and where it came from.

    Attributes
    ----------
    image
        The pixels, mode RGB, upright.
    source
        The path as given, or ``-``.
    sha256
        Digest of the bytes of the file, 64 hexadecimal digits.
    original_size
        Width and height in pixels, upright, before scaling.
    format
        Pillow's name of the file format, such as ``PNG``.
    notes
        One line for everything that was changed or left out on the way.
    """

    image: Image.Image
    source: str
    sha256: str
    original_size: tuple[int, int]
    format: str
    notes: tuple[str, ...]

    @property
    def used_size(self) -> tuple[int, int]:
        """Width and height in pixels as handed to the processor."""
        return self.image.size


def load_image(
    source: str | os.PathLike[str], max_pixels: int | None = None, frame: int = 0, min_pixels: int | None = None
) -> LoadedImage:
    """Read one image from a file or, for ``-``, from standard input.

    Parameters
    ----------
    source
        A path, or the string ``-``.
    max_pixels
        Larger images are scaled down to at most this many pixels, keeping the aspect ratio.
    frame
        Which frame of an animation or page of a TIFF to take, from 0.
    min_pixels
        Smaller images are scaled up to at least this many pixels, keeping the aspect ratio.

    Raises
    ------
    InputError
        If the file cannot be read, is no image of a supported format, is damaged or cut off, is beyond
        Pillow's limit of pixels, or is `MAX_ASPECT` or more times as long as wide.
    UsageError
        If `max_pixels` is below 1, `min_pixels` not between 1 and that, or the image has no such `frame`.
    """
    _check_limits(min_pixels, max_pixels)
    name = display(source, "image")
    data = read_source(source, "image")
    if not data:
        raise InputError(f"{name} is empty (0 bytes): give an image file")
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            opened = _open_frame(data, frame, name, notes)
            file_format = str(opened.format)
            image = _to_rgb(_upright(opened, notes), notes)
        except EcokvError:
            raise
        except UnidentifiedImageError:
            raise InputError(
                f"{name} is not an image that can be read (found {_describe(data)}): "
                f"convert it to one of {', '.join(FORMATS)}"
            ) from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise InputError(f"{name} is too large: {_one_line(error)} Scale it down in an image editor") from None
        except Exception as error:  # noqa: BLE001 -- on hostile bytes Pillow's decoders raise whatever they hit
            raise InputError(
                f"{name} cannot be decoded ({_one_line(error)}): "
                "it is damaged, cut off or of a rare kind; get it again or export it as PNG"
            ) from None
    notes += dict.fromkeys(f"Pillow warns: {_one_line(warning.message)}" for warning in caught)
    original_size = image.size
    image = _scale_down(image, max_pixels, name, notes)
    if min_pixels is not None and math.prod(original_size) < min_pixels:
        image = _scale_up(image, min_pixels, max_pixels, notes)
    return LoadedImage(image, str(source), hashlib.sha256(data).hexdigest(), original_size, file_format, tuple(notes))


def _check_limits(min_pixels: int | None, max_pixels: int | None) -> None:
    if max_pixels is not None and max_pixels < 1:
        raise UsageError(f"max pixels is {max_pixels}: give a number of pixels from 1 on")
    most = min(max_pixels or _MOST_PIXELS, _MOST_PIXELS)
    if min_pixels is not None and not 1 <= min_pixels <= most:
        raise UsageError(f"min pixels is {min_pixels}: give a number of pixels from 1 to {most}")


def _open_frame(data: bytes, frame: int, name: str, notes: list[str]) -> Image.Image:
    """Open the bytes at `frame` and check the size before any pixel is decoded."""
    Image.open(io.BytesIO(data), formats=FORMATS).verify()  # the checksums of a PNG, which decoding skips
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    frames = getattr(image, "n_frames", 1)
    if not 0 <= frame < frames:
        raise UsageError(f"{name} has no frame {frame}: its frames are 0 to {frames - 1}")
    if frames > 1:
        notes.append(f"holds {frames} frames or pages: only number {frame} is used (counted from 0)")
    image.seek(frame)
    _check_aspect(image.size, name)
    return image


def _check_aspect(size: tuple[int, int], name: str) -> None:
    """Refuse sizes that the processors of the Qwen family would refuse."""
    if max(size) >= MAX_ASPECT * min(size):
        raise InputError(
            f"{name} is {size[0]} x {size[1]} pixels, too long and thin: "
            f"one side must be less than {MAX_ASPECT} times the other; crop or pad it"
        )


def _upright(image: Image.Image, notes: list[str]) -> Image.Image:
    """Decode, and apply the EXIF orientation (which Pillow itself applies to a TIFF)."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except (SyntaxError, ValueError, KeyError, TypeError, struct.error):
        notes.append("EXIF data is damaged: its orientation is ignored")
        image.load()
        return image
    if orientation in range(2, 9):
        notes.append(f"turned upright (EXIF orientation {orientation})")
    return ImageOps.exif_transpose(image)


def _to_rgb(image: Image.Image, notes: list[str]) -> Image.Image:
    """Convert any mode to RGB without clipping, and with transparency on white."""
    if image.mode.startswith(("I", "F")):
        image = _to_8_bit(image, notes)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema()[0] != _OPAQUE:
            notes.append("transparent parts are shown on white")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode == "CMYK":
        notes.append("converted from CMYK without a colour profile")
    return image.convert("RGB")


def _to_8_bit(image: Image.Image, notes: list[str]) -> Image.Image:
    """Scale integer or float greyscale to 0..255, linearly.

    The values fill the first customary range that holds them all (0..65535 for integers, 0..1 or
    0..255 for floats), or else their own range.
    """
    values = np.asarray(image, dtype=np.float64)
    low, high = float(values.min()), float(values.max())
    if not math.isfinite(low) or not math.isfinite(high):
        raise ValueError("NaN or infinity among its pixels")
    for top in (1, 255) if image.mode == "F" else (65535,):
        if low >= 0 and high <= top:
            low, high = 0.0, float(top)
            break
    notes.append(f"greyscale of mode {image.mode} scaled to 8 bit: {low:g} is black, {high:g} is white")
    scale = 255 / (high - low) if high > low else 0.0
    return Image.fromarray(np.rint((values - low) * scale).astype(np.uint8))


def _scale_down(image: Image.Image, max_pixels: int | None, name: str, notes: list[str]) -> Image.Image:
    """Scale to at most `max_pixels` pixels; smaller images stay as they are."""
    width, height = image.size
    if max_pixels is None or width * height <= max_pixels:
        return image
    # Whole-number square roots round down, so the product stays within the limit; a side never reaches 0.
    size = (
        min(max(math.isqrt(max_pixels * width // height), 1), max_pixels),
        min(max(math.isqrt(max_pixels * height // width), 1), max_pixels),
    )
    _check_aspect(size, f"{name}, scaled to at most {max_pixels} pixels,")
    notes.append(f"scaled from {width} x {height} to {size[0]} x {size[1]} pixels (at most {max_pixels})")
    return image.resize(size, Image.Resampling.LANCZOS)


def _scale_up(image: Image.Image, min_pixels: int, max_pixels: int | None, notes: list[str]) -> Image.Image:
    """Scale to at least `min_pixels` pixels, or as near as `max_pixels` lets."""
    width, height = image.size
    # Whole-number square roots, rounded up here.
    size = (
        math.isqrt((min_pixels * width - 1) // height) + 1,
        math.isqrt((min_pixels * height - 1) // width) + 1,
    )
    if max_pixels is not None and size[0] * size[1] > max_pixels:
        size = (math.isqrt(max_pixels * width // height), math.isqrt(max_pixels * height // width))
    if size == image.size:
        return image
    notes.append(f"scaled from {width} x {height} to {size[0]} x {size[1]} pixels (at least {min_pixels})")
    return image.resize(size, Image.Resampling.LANCZOS)


def _describe(data: bytes) -> str:
    """Say what bytes that are no image look like."""
    start = data[:1024].lower()
    for mark, what in _FOREIGN:
        if mark in start:
            return what
    if data[4:8] == b"ftyp":
        return f"a HEIC, AVIF or video file of type {data[8:12].decode('latin-1')!r}"
    if start.isascii() and b"\0" not in start:
        return "text"
    return f"{len(data)} bytes of an unknown or damaged format"


def _one_line(reason: Exception | Warning | str) -> str:
    """Put Pillow's reason on one line; the class name stands in for an empty one."""
    return " ".join(str(reason).split()) or type(reason).__name__
