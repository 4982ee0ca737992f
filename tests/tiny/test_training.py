"""The training program feeds exactly what the model's own processor and position code produce."""

import numpy as np
import pytest
import torch

from ecokv_cli.tiny import batches, checkpoint, train
from ecokv_cli.tiny.documents import ALPHABET, TILE, WORDS, render


@pytest.fixture(scope="module")
def model():
    return checkpoint.build_model(0)


def test_the_model_is_small_and_its_shape_is_the_documented_one(model):
    assert 3e6 < sum(p.numel() for p in model.parameters()) < 4e6
    assert model.config.text_config.num_key_value_heads == 2


def test_patches_equal_the_image_processor():
    page = render(7, 5, 2)
    processed = checkpoint.build_image_processor()(images=[page.image.convert("RGB")], return_tensors="pt")
    torch.testing.assert_close(batches.patches(page.pixels[None]), processed["pixel_values"], rtol=0, atol=1e-6)
    assert processed["image_grid_thw"].tolist() == [[1, 2 * page.layout.tiles[0], 2 * page.layout.tiles[1]]]


def test_positions_equal_the_model(model):
    ids = checkpoint.vocabulary()
    # Older versions of transformers find an image by the token before it.
    row = [ids["<|im_start|>"]] * 2 + [ids["<|vision_start|>"]] + [ids["<|image_pad|>"]] * 35 + [ids["?"]] * 4
    tokens = torch.tensor([row])
    wanted, _ = model.model.get_rope_index(
        tokens, mm_token_type_ids=(tokens == ids["<|image_pad|>"]).int(), image_grid_thw=torch.tensor([[1, 10, 14]])
    )
    assert torch.equal(batches.positions(3, 5, 7, 4), wanted)


def test_targets_name_the_characters_under_every_tile():
    page = render(21, 7, 1)
    characters, words, place = batches.targets(page)
    field = page.fields[2]
    row, column = round(field.value_box[1] / TILE), round(field.value_box[0] / TILE)
    tiles = range(column, column + (len(field.value) + 1) // 2)
    read = "".join(ALPHABET[c] for tile in tiles for c in characters[row, tile])
    assert read.strip() == field.value
    assert {WORDS[words[row, tile]] for tile in tiles} == {field.key}
    assert [place[row, tile] for tile in tiles] == [1, 2, 3][: len(tiles)]
    assert (words == len(WORDS)).sum() + sum(
        (len(t) + 1) // 2 for f in page.fields for t in (f.key, f.value)
    ) == words.size


def test_labels_are_the_answers_and_the_end_of_the_turn_and_every_guide_points_at_its_token():
    page, tokenizer = render(21, 7, 1), checkpoint.build_tokenizer()
    row = batches.encode(page, np.random.default_rng(0), tokenizer)
    assert len({len(column) for column in row.values()}) == 1
    asked = [token for token in row["labels"] if token != train.IGNORED]
    answers = tokenizer.decode(asked).split("<|im_end|>")[:-1]
    assert sorted(answers) == sorted(field.value for field in page.fields)
    assert all(label in (train.IGNORED, token) for token, label in zip(row["tokens"], row["labels"], strict=True))
    characters, words, _ = (part.reshape(-1, *part.shape[2:]) for part in batches.targets(page))
    names = tokenizer.convert_ids_to_tokens(row["tokens"])
    seen = 0
    for position, tile in enumerate(row["shown"]):
        if tile != train.IGNORED:
            seen += 1
            assert names[position] in {ALPHABET[c] for c in characters[tile]}
            assert names[row["asked"][position]] == "\u2581" + WORDS[words[tile]]
    assert seen == sum(len(field.value) for field in page.fields)
    assert "<unk>" not in names


def test_a_batch_is_a_pure_function_of_its_step(model):
    tokenizer = checkpoint.build_tokenizer()
    batch, again = train.make_batch(3, 0.0, tokenizer), train.make_batch(3, 0.0, tokenizer)
    assert torch.equal(batch["patches"], again["patches"])
    assert torch.equal(batch["tokens"], again["tokens"])


def guided_model():
    train.AttentionInterface.register("sdpa_looking", train._attention)
    train.AttentionMaskInterface.register("sdpa_looking", train.sdpa_mask)
    made = checkpoint.build_model(0)
    made.set_attn_implementation({"text_config": "sdpa_looking"})
    return made


@pytest.mark.parametrize("phase", ["reading", "answering"])
def test_a_step_of_each_phase_lowers_its_loss_and_touches_its_part_only(phase, monkeypatch):
    monkeypatch.setattr(batches, "TOKENS_PER_BATCH", 400)
    batch = train.make_batch(3, 0.0, checkpoint.build_tokenizer())
    model = guided_model()
    heads = train.Heads(model.config.text_config.hidden_size)

    def loss():
        return train.reading_loss(model, heads, batch) if phase == "reading" else train.answering_loss(model, batch)

    before, log = loss()
    before.backward()
    touched = {
        "visual" if "visual" in name else "language" for name, p in model.named_parameters() if p.grad is not None
    }
    assert touched == {"visual" if phase == "reading" else "language"}
    torch.optim.SGD([*model.parameters(), *heads.parameters()], lr=0.01).step()
    assert loss()[0] < before
    shares = {name: value for name, value in log.items() if name != "loss"}
    assert shares.keys() == (
        {"reading", "linking"} if phase == "reading" else {"digits", "first_digits", "asking", "showing"}
    )
    assert all(0 <= value <= 1 for value in shares.values())


def test_the_guided_rows_are_the_models_own_attention(monkeypatch):
    """The hit rate is that of the eager attention matrix at the rows where an answer is due."""
    monkeypatch.setattr(batches, "TOKENS_PER_BATCH", 400)
    batch = train.make_batch(3, 0.0, checkpoint.build_tokenizer())
    model = guided_model()
    looking = {}
    with torch.no_grad():
        image = train.see(model, batch)
        text = model.get_input_embeddings()(batch["tokens"])
        before = batch["before"]
        joined = torch.cat([text[:, :before], image, text[:, before + 1 :]], dim=1)
        inputs = {
            "inputs_embeds": joined,
            "position_ids": batch["positions"].expand(-1, len(text), -1),
            "use_cache": False,
        }
        model.model.language_model(**inputs, looking=looking)
        model.set_attn_implementation({"text_config": "eager"})
        matrix = model.model.language_model(**inputs, output_attentions=True).attentions[train.SHOW_LAYER]
    start = before + image.shape[1] - 1
    rows = matrix[:, : train.GUIDED_HEADS, start:-1].transpose(0, 1)
    target = rows.argmax(-1)[0]
    _, share = train._guided(*looking[train.SHOW_LAYER], start, target)
    assert share == pytest.approx((rows.argmax(-1) == target).float().mean().item(), abs=1e-3)


def test_learning_rate_warms_up_stays_and_falls():
    assert train.rate(0, 1000) == pytest.approx(0.01)
    assert train.rate(500, 1000) == 1
    assert train.rate(850, 1000) == pytest.approx(0.5)
    assert train.rate(1000, 1000) == 0


def test_pages_grow_with_progress():
    rng = np.random.default_rng(0)
    sizes = {p: [batches.page_size(p, rng) for _ in range(200)] for p in (0.0, 0.15, 0.9)}
    assert max(lines for lines, _ in sizes[0.0]) <= 8
    assert {columns for _, columns in sizes[0.0]} == {1}
    assert max(lines * columns for lines, columns in sizes[0.9]) >= 40
    assert max(lines for lines, _ in sizes[0.15]) <= 16


@pytest.mark.parametrize("text", ["what is the total?", "Read the Invoice.", "1 2"])
def test_the_tokenizer_reads_back_what_it_knows(text):
    tokenizer = checkpoint.build_tokenizer()
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text.lower()


def test_unknown_words_are_one_unknown_token():
    tokenizer = checkpoint.build_tokenizer()
    assert tokenizer.convert_ids_to_tokens(tokenizer("the zebra")["input_ids"]) == ["▁the", "<unk>"]


def test_a_run_interrupted_and_resumed_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "TOKENS_PER_BATCH", 400)
    monkeypatch.setattr(train, "SAVE_EVERY", 1)
    train.train(tmp_path / "a", tmp_path / "whole.pt", 1, 1, 0)
    make_batch = train.make_batch

    def interrupted(step, *rest):
        if step == 1:
            raise KeyboardInterrupt
        return make_batch(step, *rest)

    monkeypatch.setattr(train, "make_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train.train(tmp_path / "b", tmp_path / "parts.pt", 1, 1, 0)
    monkeypatch.setattr(train, "make_batch", make_batch)
    train.train(tmp_path / "b", tmp_path / "parts.pt", 1, 1, 0)
    whole, parts = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "parts"))
    assert whole["step"] == parts["step"] == 2
    assert all(torch.equal(value, parts["model"][name]) for name, value in whole["model"].items())
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (tmp_path / "a" / "model.safetensors").read_bytes()
