"""The tables of docs/models.md, from dumps of tiny models and from refusals.

    PYTHONPATH=.:tests:tests/models python tests/models/architecture_table.py

writes them anew; a test compares them with what it sees itself.
"""

import sys
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from tiny_parts import PROMPT, has_template
from tiny_qwen import QWEN
from tiny_refused import REFUSED
from tiny_text import TEXT
from tiny_vision import VISION

from ecokv_cli.dump.layers import ranges
from ecokv_cli.dump.reader import open_dump
from ecokv_cli.errors import ModelError
from ecokv_cli.models.dumping import write_dump
from ecokv_cli.models.loading import load_model
from ecokv_cli.models.settings import DumpSettings
from ecokv_cli.sample.images import load_image
from ecokv_cli.sample.samples import Sample

DOCS = Path(__file__).parents[2] / "docs" / "models.md"
SIZE = (84, 56)
"""Pixels of the image that all are shown."""

NOTES = {
    "llama": ("Llama", ""),
    "mistral": ("Mistral", "v0.1 has a window in every layer: prompt and answer have to fit in it"),
    "qwen2": ("Qwen2", ""),
    "qwen2_window": ("Qwen2 with `use_sliding_window`", ""),
    "qwen3": ("Qwen3", ""),
    "phi3": ("Phi-3", "no `--prerope-keys`: its projection of keys is fused with others"),
    "gemma3_text": ("Gemma 3, text", ""),
    "gemma3": ("Gemma 3", "image tokens see each other; no grid with pan-and-scan"),
    "qwen2_vl": ("Qwen2-VL", ""),
    "qwen2_5_vl": ("Qwen2.5-VL", ""),
    "qwen3_vl": ("Qwen3-VL", ""),
    "llava": ("LLaVA", "the grid covers the central square, or the padded one"),
    "llava_next": ("LLaVA-NeXT, Mistral", "base view, then rows that end in a newline token"),
    "llava_next_vicuna": ("LLaVA-NeXT, Vicuna", "the same"),
    "llava_onevision": ("LLaVA-OneVision", "the same, scaled down above `anyres_max`"),
    "internvl": ("InternVL", "tiles in raster order, then the whole image"),
    "idefics3": ("Idefics3", "the same, each tile after a token with its row and column"),
    "smolvlm": ("SmolVLM", "the same; its processor needs `num2words`"),
    "paligemma": ("PaliGemma", "the prompt sees itself in both directions; no chat template: `--no-chat-template`"),
}  # fmt: skip
"""Of each tiny model but the one that is refused on this prompt: the name in the table, and what else to know."""


def dump_of(name, loaded, folder):
    """A dump of the image and the prompt."""
    images = []
    if loaded.multimodal:
        Image.linear_gradient("L").resize(SIZE).convert("RGB").save(folder / "page.png")
        images = [load_image(folder / "page.png")]
    settings = DumpSettings(window=7, decode=5, ignore_eos=True, template=has_template(loaded))
    write_dump(loaded, Sample(name, (), PROMPT), images, settings, folder / name)
    return open_dump(folder / name)


def row_of(name, dump):
    """One line of the table."""
    manifest, (title, note) = dump.manifest, NOTES[name]
    model, axes = manifest.model, len(manifest.position_ids)
    shape = f"{model.layers} layers, {model.query_heads}/{model.kv_heads} heads of {model.head_dim}"
    sliding = f"{ranges(dump.windows)} of {model.layers}" if dump.windows else ""
    cells = (title, f"`{model.model_type}`", shape, grids_in_words(manifest.grids), str(axes), sliding, note)
    return f"| {' | '.join(cells)} |"


def grids_in_words(grids):
    """``6 tiles of 2 x 2, then 2 x 2``."""
    parts = []
    kinds = groupby(grids, key=lambda g: (g.rows, g.cols, g.extra, g.box == (0, 0, 1, 1)))
    for (rows, cols, extra, whole), same in kinds:
        count = len(list(same))
        text = f"{rows} x {cols}" + (f" + {extra} per row" if extra else "")
        parts.append(text if whole or count == 1 else f"{count} tiles of {text}")
    return ", then ".join(parts)


def refusal_row(name, error):
    """One line of the second table."""
    architecture, reason = (
        str(error).removesuffix("; its cache cannot be analysed, choose another model").split(": ", 1)
    )
    return f"| {name} | `{architecture}` | {reason} |"


def refusal_of(name, folder):
    """What loading says of a model that cannot be analysed."""
    REFUSED[name][0](folder)
    try:
        load_model(str(folder))
    except ModelError as error:
        return error
    raise AssertionError(name)


def documented():
    """Lines of the docs, and where in them the two tables stand, without headings."""
    lines = [*DOCS.read_text(encoding="utf-8").splitlines(), ""]
    starts = [number + 3 for number, line in enumerate(lines) if line.startswith("<!-- written by")]
    ends = [next(i for i in range(start, len(lines)) if not lines[i].startswith("|")) for start in starts]
    return lines, [slice(*pair) for pair in zip(starts, ends, strict=True)]


def main():
    """Write both tables into the docs."""
    builders = TEXT | QWEN | VISION
    from conftest import load_tiny

    with TemporaryDirectory() as place:
        rows = []
        for name in NOTES:
            folder = Path(place) / f"{name}-model"
            folder.mkdir()
            builders[name](folder)
            rows.append(row_of(name, dump_of(name, load_tiny(name, folder), Path(place))))
        refusals = []
        for number, name in enumerate(REFUSED):
            folder = Path(place) / str(number)
            folder.mkdir()
            refusals.append(refusal_row(name, refusal_of(name, folder)))
    lines, (first, second) = documented()
    lines[second], lines[first] = refusals, rows  # from the end, so that the first stays in its place
    DOCS.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
