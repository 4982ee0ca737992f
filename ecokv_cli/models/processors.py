"""Processors: tokenizer plus image processor, also on machines without torchvision."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

from transformers import AutoProcessor, AutoTokenizer
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from ecokv_cli.errors import ModelError

VISION = ("torchvision", "num2words")
"""Packages of the extra ``vision``, which some processors ask for."""


def load_processor(source: str, config: Any, *, multimodal: bool, **options: Any) -> Any:
    """The processor of a multimodal model, or the tokenizer of a text model.

    Without torchvision, processors that need it only for video are loaded without their video part.

    Parameters
    ----------
    source
        Folder or hub id.
    config
        The model's configuration.
    multimodal
        Whether images are to be processed.
    **options
        Passed to ``from_pretrained`` (revision, trust_remote_code, gguf_file).

    Raises
    ------
    ModelError
        If a package is missing that this processor needs, or torchvision is installed but does not work.
    """
    if not multimodal:
        return AutoTokenizer.from_pretrained(source, **options)
    try:
        if _has_video_part(config) and not importlib.util.find_spec("torchvision"):
            kind = _without_video(PROCESSOR_MAPPING[type(config)])
            return kind.from_pretrained(source, video_processor=None, **options)
        return AutoProcessor.from_pretrained(source, **options)
    except (ImportError, AttributeError, RuntimeError, ValueError) as error:
        if isinstance(error, ValueError) and "torchvision" not in str(error):
            raise
        raise ModelError(
            f"{source}: its processor cannot be built ({_first_sentence(error)}); {_way_out(error)}"
        ) from error


def _way_out(error: BaseException) -> str:
    absent = [name for name in VISION if not importlib.util.find_spec(name)]
    named = [name for name in absent if name in str(error)]
    if named or "torchvision" in absent:
        return f"{' and '.join(named or absent)} may be what is missing: pip install 'ecokv-cli[vision]'"
    return (
        "the installed torchvision does not match torch: reinstall both together, or uninstall torchvision, which "
        "images do not need"
    )


def _has_video_part(config: Any) -> bool:
    return type(config) in PROCESSOR_MAPPING and "video_processor" in PROCESSOR_MAPPING[type(config)].get_attributes()


def _without_video(kind: Any) -> Any:
    attributes = [name for name in kind.get_attributes() if "video" not in name]
    # SmolVLM's chat template is given these two, whether there is a video or not.
    nothing = SimpleNamespace(num_frames=None, fps=None)
    return type(
        kind.__name__, (kind,), {"get_attributes": classmethod(lambda _: attributes), "video_processor": nothing}
    )


def _first_sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()).partition(". ")[0]
    return (text or type(error).__name__)[:200]
