"""Roles and image grids."""

import itertools
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from tiny_parts import inputs_of

from ecokv_cli.errors import InputError, ModelError, UsageError
from ecokv_cli.models.layout import ADAPTERS, Piece, describe_tokens
from ecokv_cli.models.loading import load_model
from ecokv_cli.models.prompting import prepare
from ecokv_cli.studies.analyze.prompt import Prompt


def described(loaded, sizes, prompt="the total"):
    images = [Image.new("RGB", size) for size in sizes]
    inputs = prepare(loaded, images, prompt).inputs
    return describe_tokens(loaded, inputs, sizes)


def test_qwen_grid_is_in_raster_order(loaded_model):
    tokens, grids = described(loaded_model("shipped"), [(140, 84)])
    assert [(g.image, g.start, g.rows, g.cols, g.extra) for g in grids] == [(0, 3, 3, 5, 0)]
    assert tokens.roles[:3] == ("special", "text", "special")
    assert tokens.by_role() == {"text": 4, "image": 15, "special": 5}
    assert (tokens.row[3 + 7], tokens.col[3 + 7]) == (1, 2)
    assert tokens.strings[0] == "<|im_start|>"


def test_two_images_have_two_grids(loaded_model):
    tokens, grids = described(loaded_model("shipped"), [(140, 84), (56, 112)])
    assert [(g.image, g.rows, g.cols) for g in grids] == [(0, 3, 5), (1, 4, 2)]
    assert tokens.image.count(0) == 15
    assert tokens.image.count(1) == 8


@pytest.mark.parametrize("size", [(60, 25), (25, 60), (40, 40), (100, 30), (31, 100)])
def test_llava_next_has_a_base_view_and_rows_with_newlines(loaded_model, size):
    tokens, grids = described(loaded_model("llava_next"), [size])
    assert (grids[0].rows, grids[0].cols, grids[0].extra) == (4, 4, 0)
    assert grids[1].extra == 1
    assert 16 + grids[1].rows * (grids[1].cols + 1) == tokens.roles.count("image")
    newline = grids[1].start + grids[1].cols
    assert tokens.roles[newline] == "image"
    assert tokens.row[newline] is None


SIZES = {
    "gemma3": [(28, 28), (60, 30)],
    "idefics3": [(84, 84), (84, 56), (40, 90), (20, 25)],
    "internvl": [(84, 56), (56, 112), (30, 28)],
    "llava": [(56, 56), (70, 30), (25, 80)],
    "llava_next": [(56, 28), (56, 56), (84, 28), (40, 90)],
    "llava_next_vicuna": [(28, 56)],
    "llava_onevision": [(56, 28), (56, 56), (28, 84)],
    "paligemma": [(56, 56), (90, 40)],
    "qwen2_5_vl": [(140, 84), (84, 196)],
    "qwen2_vl": [(140, 84), (56, 112)],
    "qwen3_vl": [(160, 96)],
    "smolvlm": [(84, 56)],
}
"""Sizes (width, height) of the images that each architecture is shown: square, wide, tall, small."""


def at_decoder(loaded, images):
    """Inputs, and the states ``[N, D]`` that the first decoder layer is given, image features in their places."""
    inputs = inputs_of(loaded, *images, prompt="the total")
    seen = []
    layer = loaded.model.get_decoder().layers[0]
    handle = layer.register_forward_pre_hook(lambda _, given, options: seen.append(given[0]), with_kwargs=True)
    with torch.inference_mode():
        loaded.model(**inputs)
    handle.remove()
    return inputs, seen[0][0]


def overlap(grid, row, col, mark):
    """Share of a cell of `grid` that lies in the box `mark`, both in fractions of the image."""
    x0, y0, x1, y1 = grid.box
    width, height = (x1 - x0) / grid.cols, (y1 - y0) / grid.rows
    left, top = x0 + col * width, y0 + row * height
    across = min(left + width, mark[2]) - max(left, mark[0])
    down = min(top + height, mark[3]) - max(top, mark[1])
    return max(across, 0) * max(down, 0) / (width * height)


@pytest.mark.parametrize(("name", "size"), [(name, size) for name in SIZES for size in SIZES[name]])
def test_a_marked_region_changes_exactly_the_cells_that_the_grid_puts_there(loaded_model, name, size):
    """Through the real image processor and vision tower: cells in a dark region change more than all others."""
    loaded = loaded_model(name)
    plain, marked = Image.new("RGB", size, "white"), Image.new("RGB", size, "white")
    # The upper right quarter: no transposed or mirrored grid fits.
    corners = [round(part * side) for part, side in zip((0.5, 0.0, 1.0, 0.5), (*size, *size), strict=True)]
    marked.paste("black", tuple(corners))
    mark = [corner / side for corner, side in zip(corners, (*size, *size), strict=True)]
    (_, before), (inputs, after) = at_decoder(loaded, [plain]), at_decoder(loaded, [marked])
    change = (before - after).norm(dim=-1)
    tokens, grids = describe_tokens(loaded, inputs, [size])
    assert grids
    inside, outside = [], []
    for grid in grids:
        for row in range(grid.rows):
            for col in range(grid.cols):
                position = grid.start + row * (grid.cols + grid.extra) + col
                assert (tokens.row[position], tokens.col[position]) == (row, col)
                share = overlap(grid, row, col, mark)
                inside += [position] if share > 0.9 else []
                outside += [position] if share == 0 else []
    assert inside
    assert outside
    assert change[inside].min() > change[outside].max()
    newlines = [i for i, role in enumerate(tokens.roles) if role == "image" and tokens.row[i] is None]
    assert not change[newlines].any()
    assert not change[[i for i, role in enumerate(tokens.roles) if role != "image"]].any()


def test_text_models_take_no_images(loaded_model, picture):
    with pytest.raises(InputError, match="takes no images and 1 were given"):
        prepare(loaded_model("llama"), [picture], "hello")


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|im_end|>", "<|vision_start|>"])
def test_control_tokens_in_a_prompt_are_refused(loaded_model, picture, token):
    with pytest.raises(UsageError, match=r"image_pad|im_end|vision_start"):
        prepare(loaded_model("shipped"), [picture], f"what {token} is")


def test_a_model_without_a_chat_template_says_how_to_go_on(model_folder, tmp_path):
    import shutil

    folder = shutil.copytree(model_folder("llama"), tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    loaded = load_model(str(folder))
    with pytest.raises(ModelError, match="--no-chat-template"):
        prepare(loaded, [], "the total")
    assert prepare(loaded, [], "the total", template=False).inputs["input_ids"].shape == (1, 2)


def test_tiles_are_numbered_from_the_whole_image(loaded_model):
    """84 x 56 pixels are 2 x 3 tiles of 28, and the whole image after them, each of 2 x 2 cells."""
    boxes = [(c / 3, r / 2, (c + 1) / 3, (r + 1) / 2) for r in range(2) for c in range(3)] + [(0.0, 0.0, 1.0, 1.0)]
    for name in ("internvl", "idefics3", "smolvlm"):
        _, grids = described(loaded_model(name), [(84, 56)])
        assert [grid.box for grid in grids] == boxes
        assert {(grid.rows, grid.cols, grid.extra, grid.image) for grid in grids} == {(2, 2, 0, 0)}
        steps = {later.start - grid.start for grid, later in itertools.pairwise(grids)}
        assert steps == {4} if name == "internvl" else min(steps) > 4


@pytest.mark.parametrize(("name", "tiles"), [("internvl", [7, 1]), ("idefics3", [7, 10]), ("smolvlm", [7, 10])])
def test_tiles_of_two_images_are_kept_apart(loaded_model, name, tiles):
    tokens, grids = described(loaded_model(name), [(84, 56), (28, 28)])
    assert [sum(grid.image == image for grid in grids) for image in (0, 1)] == tiles
    assert [tokens.image.count(image) for image in (0, 1)] == [4 * count for count in tiles]


def test_images_that_onevision_is_given_as_a_group_are_padded_base_views_with_a_newline(loaded_model):
    loaded, sizes = loaded_model("llava_onevision"), [(80, 40), (30, 90)]
    assert len(described(loaded, sizes)[1]) == 4  # one by one they have two views each
    images = [Image.new("RGB", size) for size in sizes]
    inputs = loaded.processor(images=[images], text=["<image><image> the total"], return_tensors="pt")
    tokens, grids = describe_tokens(loaded, inputs, sizes)
    assert [(g.image, g.rows, g.cols, g.box) for g in grids] == [
        (0, 4, 4, (0.0, -0.5, 1.0, 1.5)), (1, 4, 4, (-1.0, 0.0, 2.0, 1.0))
    ]  # fmt: skip
    assert tokens.image.count(0) == tokens.image.count(1) == 17
    assert tokens.row[grids[0].start + 16] is None
    # Of the first image's rows only the second and third see it, the others see the padding.
    regions = Prompt(SimpleNamespace(grids=grids, tokens=tokens)).regions
    inside = {p for region, members in regions.items() if region.image == 0 for p in members.nonzero()[:, 0].tolist()}
    assert inside == set(range(grids[0].start + 4, grids[0].start + 12))
    assert {(region.row, region.col) for region in regions} <= {(row, col) for row in range(3) for col in range(3)}


def test_onevision_scales_large_images_down(loaded_model):
    """At most about 2 x 16 cells: 8 x 8 of 56 x 56 pixels become 5 x 5."""
    _, grids = described(loaded_model("llava_onevision"), [(56, 56)])
    assert [(g.rows, g.cols, g.extra) for g in grids] == [(4, 4, 0), (5, 5, 1)]


def test_without_an_adapter_images_are_known_and_places_are_not(loaded_model, monkeypatch):
    monkeypatch.delitem(ADAPTERS, "qwen2_vl")
    for sizes in ([(140, 84)], [(140, 84), (56, 112)]):
        tokens, grids = described(loaded_model("qwen2_vl"), sizes)
        assert grids == ()
        assert [tokens.image.count(i) for i in range(len(sizes))] == [15, 8][: len(sizes)]
        assert set(tokens.row) == set(tokens.col) == {None}


def test_an_adapter_that_does_not_add_up_is_not_believed(loaded_model, monkeypatch):
    monkeypatch.setitem(ADAPTERS, "qwen2_vl", lambda scene: [Piece(0, 3, 4)])
    tokens, grids = described(loaded_model("qwen2_vl"), [(140, 84)])
    assert grids == ()
    assert tokens.by_role()["image"] == tokens.image.count(0) == 15


def test_gemma_takes_its_own_placeholder_without_a_template(loaded_model):
    loaded = loaded_model("gemma3")
    inputs = prepare(loaded, [Image.new("RGB", (28, 28))], "the total", template=False).inputs
    _tokens, grids = describe_tokens(loaded, inputs, [(28, 28)])
    assert [(g.rows, g.cols) for g in grids] == [(2, 2)]


def test_the_adapter_in_contributing_works(loaded_model, monkeypatch):
    """Its halves of 8 x 8 cells, run on a model that happens to give an image as many tokens."""
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    start = text.index("    def _halves(")
    code = textwrap.dedent(text[start : text.index("\n\n", start)])
    known = {"Piece": Piece}
    exec(code.replace("Scene", "object").replace("list[Piece]", "list"), known)
    monkeypatch.setitem(ADAPTERS, "qwen2_vl", known["_halves"])
    # 252 x 448 pixels are 9 x 16 cells: two halves of 8 rows, of 8 cells and a token each.
    tokens, grids = described(loaded_model("qwen2_vl"), [(252, 448)])
    assert [(grid.rows, grid.cols, grid.extra, grid.box) for grid in grids] == [
        (8, 8, 1, (0, 0, 0.5, 1)), (8, 8, 1, (0.5, 0, 1, 1)),
    ]  # fmt: skip
    assert grids[1].start == grids[0].start + 72
    placed = sum(row is not None for row in tokens.row)
    assert (tokens.by_role()["image"], tokens.image.count(0), placed) == (144, 144, 128)
