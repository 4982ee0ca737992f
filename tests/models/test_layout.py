"""Roles and image grids."""

import pytest
import torch
from PIL import Image

from ecokv_cli.errors import InputError, ModelError, UsageError
from ecokv_cli.models.layout import describe_tokens
from ecokv_cli.models.loading import load_model
from ecokv_cli.models.prompting import prepare


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


@pytest.mark.parametrize("name", ["qwen2_vl", "llava_next"])
def test_a_marked_region_changes_exactly_its_cells_at_the_input_of_the_decoder(loaded_model, name):
    """Image tokens whose embedding is changed most by a dark square lie where the square is."""
    loaded = loaded_model(name)
    size = (140, 84) if name == "qwen2_vl" else (56, 56)
    plain, marked = Image.new("RGB", size, "white"), Image.new("RGB", size, "white")
    cell = 28 if name == "qwen2_vl" else 7
    marked.paste("black", (cell * 2, cell, cell * 3, cell * 2))
    states = []
    for image in (plain, marked):
        inputs = prepare(loaded, [image], "the total").inputs
        with torch.inference_mode():
            states.append(loaded.model(**inputs, output_hidden_states=True).hidden_states[0][0])
    change = (states[0] - states[1]).norm(dim=-1)
    tokens, grids = describe_tokens(loaded, inputs, [size])
    grid = grids[-1]
    cells = [
        i
        for i in range(len(tokens.ids))
        if tokens.image[i] is not None and i >= grid.start and tokens.row[i] is not None
    ]
    best = max(cells, key=lambda i: change[i])
    assert (tokens.row[best], tokens.col[best]) == (1, 2)


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
