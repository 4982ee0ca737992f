"""Processors: tokenizer plus image processor, also on machines without torchvision."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

from transformers import AutoProcessor, AutoTokenizer
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from ecokv_cli.errors import ModelError


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
        If torchvision is installed but does not work, or the processor files are missing.
    """
    if not multimodal:
        return AutoTokenizer.from_pretrained(source, **options)
    try:
        if _has_video_part(config) and not importlib.util.find_spec("torchvision"):
            kind = _without_video(PROCESSOR_MAPPING[type(config)])
            return kind.from_pretrained(source, video_processor=None, **options)
        return AutoProcessor.from_pretrained(source, **options)
    except (ImportError, AttributeError, RuntimeError) as error:
        if importlib.util.find_spec("torchvision"):
            raise ModelError(
                f"{source}: its image processor cannot be built ({_first_line(error)}); the installed torchvision does "
                f"not match torch: reinstall both together, or uninstall torchvision, which images do not need"
            ) from error
        raise ModelError(
            f"{source}: its processor cannot be built ({_first_line(error)}); install ecokv-cli[vision]"
        ) from error


def _has_video_part(config: Any) -> bool:
    return type(config) in PROCESSOR_MAPPING and "video_processor" in PROCESSOR_MAPPING[type(config)].get_attributes()


def _without_video(kind: Any) -> Any:
    attributes = [name for name in kind.get_attributes() if "video" not in name]
    # SmolVLM's chat template is given these two, whether there is a video or not.
    nothing = SimpleNamespace(num_frames=None, fps=None)
    return type(
        kind.__name__, (kind,), {"get_attributes": classmethod(lambda _: attributes), "video_processor": nothing}
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
