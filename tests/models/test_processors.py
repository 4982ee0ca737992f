"""Processors on machines without torchvision or num2words, and with a torchvision that does not work."""

import importlib.util

import pytest
import transformers

from ecokv_cli.errors import ModelError
from ecokv_cli.models import processors
from ecokv_cli.models.loading import load_model

FIND = importlib.util.find_spec


@pytest.fixture
def installed(monkeypatch):
    """Which of the packages for vision are said to be installed."""

    def only(*names):
        monkeypatch.setattr(
            processors.importlib.util, "find_spec",
            lambda name: (name in names or None) if name in processors.VISION else FIND(name),
        )  # fmt: skip

    return only


@pytest.fixture
def failing(monkeypatch):
    """A processor that cannot be built."""

    def fail(error):
        def refuse(*_, **__):
            raise error

        monkeypatch.setattr(processors.AutoProcessor, "from_pretrained", refuse)

    return fail


NO_CLASS = ValueError(
    "Could not load any image processor class for x. The model configuration resolves to the following classes.\n"
    "Missing optional dependencies: torchvision. Please install them."
)
NO_WORDS = ImportError("Package `num2words` is required to run SmolVLM processor. Install it with `pip`.")
NO_OPERATOR = RuntimeError("operator torchvision::nms does not exist")


@pytest.mark.parametrize(("error", "there", "message"), [
    (NO_CLASS, (), r"\(Could not load any image processor class for x\); torchvision may be .*'ecokv-cli\[vision\]'"),
    (NO_WORDS, (), r"num2words` is required .*\); num2words may be what is missing: pip install 'ecokv-cli\[vision\]'"),
    (NO_WORDS, ("torchvision",), r"\); num2words may be what is missing: pip install 'ecokv-cli\[vision\]'"),
    (ImportError("Could not import module 'SmolVLMProcessor'"), (), r"torchvision and num2words may be"),
    (NO_OPERATOR, ("torchvision", "num2words"), r"nms does not exist\); the installed torchvision does not match"),
    (AttributeError(), ("torchvision", "num2words"), r"\(AttributeError\); the installed torchvision does not match"),
])  # fmt: skip
def test_what_is_missing_is_named_with_the_extra_that_brings_it(
    model_folder, installed, failing, error, there, message
):
    installed(*there)
    failing(error)
    folder = str(model_folder("llava"))
    with pytest.raises(ModelError, match=message) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{folder}: its processor cannot be built (")


def test_other_trouble_with_a_processor_is_said_as_it_is(model_folder, failing):
    failing(ValueError("size has no shortest_edge"))
    with pytest.raises(ModelError, match=r"cannot be loaded \(size has no shortest_edge\)"):
        load_model(str(model_folder("llava")))


@pytest.mark.skipif(bool(FIND("torchvision")), reason="torchvision is installed")
@pytest.mark.parametrize("name", ["shipped", "qwen3_vl", "llava_onevision", "internvl"])
def test_a_processor_that_has_a_video_part_does_without_it(name, loaded_model):
    processor = loaded_model(name).processor
    assert "video_processor" not in processor.get_attributes()
    assert type(processor).__name__ == type(processor).__mro__[1].__name__


@pytest.mark.skipif(not FIND("num2words"), reason="num2words is not installed")
def test_smolvlm_has_its_own_processor(loaded_model):
    """On the newest version; older ones want torchvision for it."""
    if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24):
        pytest.skip("older than 5.24")
    assert type(loaded_model("smolvlm").processor).__name__ == "SmolVLMProcessor"
