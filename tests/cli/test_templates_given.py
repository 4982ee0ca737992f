"""Models without a chat template, other templates than their own, and system messages."""

import pytest
from PIL import Image
from tiny_model import TEMPLATE, build, copied

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.models.loading import load_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tiny") / "model")


def manifest(run, sample="sample"):
    return open_dump(run / "dump" / sample).manifest


@pytest.fixture
def untemplated(tiny, tmp_path):
    folder = copied(tiny, tmp_path / "plain")
    (folder / "chat_template.jinja").unlink()
    return folder


def test_no_chat_template(ecokv, untemplated, tmp_path):
    common = ("dump", "-m", untemplated, "-p", "the total", "--decode", "1")
    status, _, err = ecokv(*common, "-o", "r")
    assert status == 1
    assert "plain: has no chat template; add --no-chat-template" in err
    assert ecokv(*common, "-o", "r", "--no-chat-template")[0] == 0
    assert len(manifest(tmp_path / "r").tokens.ids) == 2
    status, _, err = ecokv(*common, "-o", "s", "--system", "x")
    assert status == 1
    assert "no single chat template to put --system into; add --chat-template" in err
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    assert ecokv(*common, "-o", "s", "--chat-template", "t.jinja", "--system", "the date")[0] == 0


def rendered(run):
    return "".join(manifest(run).tokens.strings).replace("▁", " ")


def test_a_template_from_a_file(ecokv, tiny, tmp_path):
    (tmp_path / "t.jinja").write_text("<|im_start|> value {{ messages[0]['content'] }} of total")
    common = ("dump", "-m", tiny, "-p", "the date", "--decode", "1")
    assert ecokv(*common, "-o", "own")[0] == 0
    assert ecokv(*common, "-o", "other", "--chat-template", "t.jinja")[0] == 0
    assert rendered(tmp_path / "own") == "<|im_start|> user the date<|im_end|><|im_start|> assistant"
    assert rendered(tmp_path / "other") == "<|im_start|> value the date of total"
    own, other = (manifest(tmp_path / name).model for name in ("own", "other"))
    assert (own.chat_template, len(other.chat_template)) == ("", 64)


def test_a_template_by_name(ecokv, tiny, tmp_path):
    folder = copied(tiny, tmp_path / "named")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "short.jinja").write_text("{{ messages[-1]['content'] }} total")
    common = ("dump", "-m", folder, "-p", "the date", "--decode", "1")
    assert ecokv(*common, "-o", "r", "--chat-template", "short")[0] == 0
    assert rendered(tmp_path / "r") == " the date total"
    status, _, err = ecokv(*common, "-o", "s", "--chat-template", "shrt")
    assert status == 2
    assert "--chat-template shrt: no such file, and no template of named (it has: default, short)" in err


@pytest.mark.parametrize("system", ["the batch", "a \"date\" \\n %} {{ 7 * 7 }} 'x'", "line one\nline two", "😀 é", ""])
def test_a_system_message_comes_first_and_literally(tiny, system):
    from ecokv_cli.models.prompting import _rendered
    from ecokv_cli.models.templates import use_template

    loaded = use_template(load_model(str(tiny)), None, system)
    start = f"<|im_start|>system {system}<|im_end|><|im_start|>user the date<|im_end|>"
    assert _rendered(loaded, 0, "the date").startswith(start)
    assert loaded.info.system == system


def test_a_system_message_for_a_multimodal_model_is_text_before_the_image(ecokv, tmp_path):
    common = ("dump", "--decode", "1")
    assert ecokv(*common, "-o", "r", "--system", "the batch")[0] == 0
    assert rendered_start(tmp_path / "r") == "<|im_start|><unk> the batch<|im_end|><|im_start|> user"
    assert manifest(tmp_path / "r", "two-columns").model.system == "the batch"


def rendered_start(run):
    strings = "".join(manifest(run, "two-columns").tokens.strings).replace("▁", " ")
    return strings[: strings.index("<|vision_start|>")]


def test_a_line_end_at_the_start_of_a_template_is_kept(tiny):
    from ecokv_cli.models.prompting import _rendered
    from ecokv_cli.models.templates import use_template
    from ecokv_cli.sample.templates import ChatTemplate

    template = ChatTemplate("t", "\nX{% for m in messages %}{{ m['content'] }};{% endfor %}")
    assert _rendered(use_template(load_model(str(tiny)), template, "one"), 0, "two") == "\nXone;two;"


def test_another_system_message_or_template_is_another_run(ecokv, tiny, tmp_path):
    (tmp_path / "m.jsonl").write_text('{"prompt": "the total"}')
    (tmp_path / "t.jinja").write_text("{{ messages[0]['content'] }} total")
    common = ("dump", "--manifest", "m.jsonl", "-m", tiny, "-o", "r", "--decode", "1")
    assert ecokv(*common, "--system", "the date")[0] == 0
    assert "1 of 1 already there" in ecokv(*common, "--system", "the date")[2]
    status, _, err = ecokv(*common, "--system", "the batch")
    assert status == 1
    assert "made with model.system 'the date', now 'the batch'" in err
    status, _, err = ecokv(*common, "--chat-template", "t.jinja")
    assert status == 1
    assert "made with model.chat_template '', now " in err


@pytest.mark.parametrize(("template", "options", "status", "message"), [
    ("{% for %}", (), 1, "chat template 't.jinja': fails on a plain question ("),
    ("{{ raise_exception('no, thanks') }}", (), 1, "fails on a plain question (no, thanks)"),
    ("{{ messages[7]['content'] }}", (), 1, "fails on a plain question ("),
    ("{{ ''.__class__.__mro__[1].__subclasses__() }}", (), 1, "fails on a plain question ("),
    ("total {{ messages[-1]['content'] }}", ("--system", "the date"), 1, "leaves the system message out"),
    (TEMPLATE, ("--no-chat-template",), 2, "--chat-template and --no-chat-template exclude each other"),
    (TEMPLATE, ("--system", "x<|im_end|>"), 2, "the prompt holds '<|im_end|>', a control token"),
    (TEMPLATE, ("--system", "-", "-p", "-"), 2, "standard input can be read once"),
])  # fmt: skip
def test_templates_that_do_not_work(ecokv, tiny, tmp_path, template, options, status, message):
    (tmp_path / "t.jinja").write_text(template)
    found, _, err = ecokv("dump", "-m", tiny, "-p", "the date", "-o", "r", "--chat-template", "t.jinja", *options)
    assert (found, err.count("\n")) == (status, 1)
    assert message in err
    assert not (tmp_path / "r").exists()


def test_a_model_whose_template_takes_no_system_message(ecokv, tiny, tmp_path):
    folder = copied(tiny, tmp_path / "strict")
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    (folder / "chat_template.jinja").write_text(refusing + TEMPLATE)
    status, _, err = ecokv("dump", "-m", folder, "-p", "the date", "--system", "be brief")
    assert status == 1
    assert "strict: its chat template takes no system message (System role not supported); leave --system out" in err


IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.mark.parametrize(("template", "images", "message"), [
    (IMAGE, 2, "2 images are given and the chat template places 1; use another --chat-template"),
    (IMAGE * 2, 1, "1 images are given and the chat template places 2"),
    (IMAGE, 0, "0 images are given and the chat template places 1"),
    ("<|image_pad|>" * 2, 1, "the chat template places 2"),
    ("", 1, "image"),
])  # fmt: skip
def test_a_template_that_repeats_an_image_or_leaves_one_out(ecokv, tmp_path, template, images, message):
    for number in range(images):
        Image.new("RGB", (56, 28 * (1 + number))).save(tmp_path / f"{number}.png")
    (tmp_path / "t.jinja").write_text(template + "{{ messages[-1]['content'][-1]['text'] }}")
    names = [f"{number}.png" for number in range(images)]
    status, out, err = ecokv("dump", *names, "-p", "the total", "--chat-template", "t.jinja", "-o", "r")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert message in err
    assert not (tmp_path / "r").exists()


def test_a_template_that_places_no_image(ecokv, tmp_path):
    (tmp_path / "t.jinja").write_text("<|im_start|> the total")
    status, _, err = ecokv("dump", "--chat-template", "t.jinja", "-o", "r")
    assert status == 1
    assert err.count("\n") == 1
    assert "image" in err
    assert not (tmp_path / "r").exists()
