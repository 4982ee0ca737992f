"""The manifest of one dumped sample: everything about the run that is not a tensor."""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, dataclass, field
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ecokv_cli.dump.checks import ROLES, first_fault
from ecokv_cli.dump.identity import Identity
from ecokv_cli.errors import DumpError

SCHEMA_VERSION = "1.1"
"""Major.minor; a reader refuses another major version. Fields that came later than 1.0 have defaults."""


@dataclass(frozen=True)
class ModelInfo:
    """Which model was run and how its attention is shaped.

    `config_sha256` and `weights_sha256` are digests of the configuration and of some numbers of every weight, the same
    from whatever folder the model was loaded; the latter is empty where it was not taken.
    `code` names files of the checkpoint whose code was run, with the start of their sha256; empty where none was.
    `chat_template` is the sha256 of a template that was given in place of the model's own, empty where none was, and
    `system` the system message put before each prompt, None where there is none.
    """

    id: str
    revision: str | None
    architecture: str
    model_type: str
    config_sha256: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    remote_code: bool
    code: tuple[str, ...] = ()
    chat_template: str = ""
    system: str | None = None
    weights_sha256: str = ""

    @property
    def identity(self) -> Identity:
        """What tells it from other models."""
        return Identity(self.id, self.revision, self.config_sha256, self.weights_sha256)


@dataclass(frozen=True)
class ImageInfo:
    """One input image; sizes are (width, height) before and after ecokv's own resizing.

    `file` is the used image as PNG in the dump folder, `sha256` that of the file the user gave.
    """

    source: str
    file: str
    format: str
    sha256: str
    original_size: tuple[int, int]
    used_size: tuple[int, int]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ImageGrid:
    """How the tokens of one image tile lie on it, `rows` x `cols` cells in raster order from position `start`.

    `box` is the part of the image that the grid covers, as fractions (x0, y0, x1, y1), beyond 0 to 1 where the image
    was padded; `extra` counts tokens after each row that belong to no cell (newline tokens).
    """

    image: int
    start: int
    rows: int
    cols: int
    box: tuple[float, float, float, float]
    extra: int


@dataclass(frozen=True)
class BoxInfo:
    """Where `text` stands: on image number `image`, at fractions (x0, y0, x1, y1) of the upright original, 0 to 1."""

    text: str
    image: int
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Tokens:
    """Per prompt position: id, string, role, and for image tokens the image and its grid cell (None elsewhere)."""

    ids: tuple[int, ...]
    strings: tuple[str, ...]
    roles: tuple[str, ...]
    image: tuple[int | None, ...]
    row: tuple[int | None, ...]
    col: tuple[int | None, ...]

    def by_role(self) -> dict[str, int]:
        """How many positions have each role that occurs."""
        return {role: self.roles.count(role) for role in ROLES if role in self.roles}


@dataclass(frozen=True)
class Decoded:
    """The greedily decoded answer; `ended` if end of sequence came, which is then the last of `ids`.

    Each of `strings` is the decoded text of one token by itself.
    """

    ids: tuple[int, ...]
    strings: tuple[str, ...]
    text: str
    ended: bool

    @property
    def fed_back(self) -> int:
        """Tokens that were fed back, so that their queries are held out: all but an end of sequence."""
        return len(self.ids) - self.ended


@dataclass(frozen=True)
class LayerFile:
    """One layer's file, its size and checksum, the softmax scaling and non-finite entries per tensor (if any).

    `kind` is ``full``, or ``sliding`` where queries see only the last `window` positions, their own included. The file
    of a sliding-window layer has keys and values alone, of the last ``window - 1`` positions of the prompt: what its
    cache held. Such layers are never analysed.
    """

    index: int
    file: str
    bytes: int
    sha256: str
    scaling: float
    nonfinite: dict[str, int]
    kind: str = "full"
    window: int | None = None

    def held(self, positions: int) -> range:
        """Prompt positions whose keys and values are in the file, of a prompt of `positions`."""
        return range(0 if self.window is None else max(positions - self.window + 1, 0), positions)


@dataclass(frozen=True)
class Manifest:
    """Everything needed to read, reproduce and interpret a dump.

    `position_ids` holds one tuple per axis: one axis, or three where the model has three M-RoPE axes. `answers` and
    `boxes` are what the sample's manifest knows; `settings` are those asked for (empty before format 1.1). `grids` has
    none of an image whose tokens could not be placed. `tensors` are those of every full-attention layer.
    """

    schema_version: str
    created: str
    sample: str
    command: str
    seed: int
    model: ModelInfo
    attention: str
    compute_dtype: str
    stored_dtype: str
    device: str
    processor: dict[str, Any]
    images: tuple[ImageInfo, ...]
    grids: tuple[ImageGrid, ...]
    prompt: str
    rendered_sha256: str
    tokens: Tokens
    position_ids: tuple[tuple[int, ...], ...]
    decoded: Decoded
    window: int
    tensors: tuple[str, ...]
    layers: tuple[LayerFile, ...]
    seconds: dict[str, float]
    versions: dict[str, str]
    answers: tuple[str, ...] = ()
    boxes: tuple[BoxInfo, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of all layer files."""
        return sum(record.bytes for record in self.layers)

    def nonfinite(self) -> list[str]:
        """One line for each tensor with NaN or infinite entries."""
        stored, computed = self.stored_dtype, self.compute_dtype
        way_out = "" if computed == "float32" else "; dump with --dtype float32"
        if stored != computed:
            way_out = f"; dump with --store-dtype {computed}"
        return [
            f"layer {record.index}: {tensor} holds {count} NaN or infinite numbers; analysis will refuse them{way_out}"
            for record in self.layers
            for tensor, count in record.nonfinite.items()
        ]

    def unplaced(self) -> list[str]:
        """One line for each image whose tokens have no row and column."""
        placed = {grid.image for grid in self.grids}
        return [
            f"image {number} ({image.source}): where its tokens look is not known for {self.model.model_type}, so they "
            f"have no row and column; all but tables and figures by place works"
            for number, image in enumerate(self.images)
            if number not in placed
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any, where: str) -> Manifest:
        """Read a manifest.

        Raises
        ------
        DumpError
            If it is of another major version, or a field is missing, of the wrong kind or does not fit the others; the
            field is named.
        """
        if not isinstance(data, dict) or not isinstance(data.get("schema_version"), str):
            raise DumpError(f"{where}: not an ecokv manifest (no schema_version); dump the sample again")
        found = data["schema_version"]
        if found.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
            raise DumpError(
                f"{where}: dump format {found}, this ecokv reads {SCHEMA_VERSION}; "
                f"use the ecokv version that wrote it, or dump again"
            )
        manifest: Manifest = _read(cls, data, where, "manifest")
        fault = first_fault(manifest)
        if fault:
            raise DumpError(f"{where}: {fault}; the manifest was edited or damaged")
        return manifest


def _read(kind: Any, value: Any, where: str, path: str) -> Any:
    """`value` from JSON as `kind`: dataclasses, tuples, optionals and plain values, each checked."""
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _read_object(kind, value, where, path)
    if origin is tuple:
        return _read_tuple(get_args(kind), value, where, path)
    if origin in (Union, UnionType):
        kind = next(k for k in get_args(kind) if k is not type(None))
        return None if value is None else _read(kind, value, where, path)
    if kind is Any:
        return value
    wanted = dict if origin is dict else (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise DumpError(f"{where}: {path} is {type(value).__name__}, expected {getattr(kind, '__name__', kind)}")
    found: Any = value
    if origin is dict:
        return {name: _read(get_args(kind)[1], inner, where, f"{path}.{name}") for name, inner in found.items()}
    return _as_float(found, where, path) if kind is float else found


def _as_float(value: float, where: str, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise DumpError(f"{where}: {path} is a whole number of hundreds of digits") from None


def _read_object(kind: Any, value: Any, where: str, path: str) -> Any:
    if not isinstance(value, dict):
        raise DumpError(f"{where}: {path} is {type(value).__name__}, expected an object")
    hints = get_type_hints(kind)
    needed = {f.name for f in dataclasses.fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    missing = needed - value.keys()
    if missing:
        raise DumpError(f"{where}: {path}.{min(missing)} is missing; the manifest was edited or damaged")
    given = {name: hint for name, hint in hints.items() if name in value}
    return kind(**{name: _read(hint, value[name], where, f"{path}.{name}") for name, hint in given.items()})


def _read_tuple(kinds: tuple[Any, ...], value: Any, where: str, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise DumpError(f"{where}: {path} is {type(value).__name__}, expected a list")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise DumpError(f"{where}: {path} has {len(value)} entries, expected {len(kinds)}")
    return tuple(_read(k, v, where, f"{path}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
