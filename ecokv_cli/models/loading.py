"""Loading a model from a hub id, a checkpoint folder or a GGUF file."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.utils import logging

from ecokv_cli.dump.schema import ModelInfo
from ecokv_cli.errors import ModelError, UsageError
from ecokv_cli.models.attention import use_backend
from ecokv_cli.models.gguf import parsed_once
from ecokv_cli.models.processors import load_processor
from ecokv_cli.models.support import require_supported

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to capture, with what turns text and images into its inputs.

    `processor` is the tokenizer itself for text-only models.
    """

    model: Any
    processor: Any
    tokenizer: Any
    info: ModelInfo
    multimodal: bool
    backend: str

    @property
    def image_token_id(self) -> int | None:
        """Id of the image placeholder, None for a text model."""
        found = getattr(self.model.config, "image_token_id", None)
        return found if self.multimodal else None


def load_model(
    source: str,
    *,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    backend: str = "sdpa",
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a model and switch its decoder to recording attention.

    Parameters
    ----------
    source
        Hub id, checkpoint folder, or ``.gguf`` file.
    revision
        Branch, tag or commit of a hub id.
    device
        ``auto`` takes the accelerator if there is one; else a torch device name.
    dtype
        ``auto`` is float32 on a CPU, where half precision is far slower, and the checkpoint's own elsewhere.
    backend
        ``sdpa`` or ``eager``.
    trust_remote_code
        Run code that comes with the checkpoint; recorded in the manifest.

    Raises
    ------
    ModelError
        If nothing is found, it cannot be loaded, or it cannot be analysed.
    UsageError
        For an unknown device, dtype or back-end.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    where, options = _locate(source)
    options |= {"revision": revision, "trust_remote_code": trust_remote_code}
    target = _device(device)
    with parsed_once(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = _guarded(source, AutoConfig.from_pretrained, where, **options)
        multimodal = config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        processor = _guarded(source, load_processor, where, config, multimodal=multimodal, **options)
        kind = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
        model = _guarded(source, kind.from_pretrained, where, dtype=_dtype(dtype, target), **options)
    model = model.to(target).eval()
    require_supported(model)
    use_backend(model, backend)
    tokenizer = getattr(processor, "tokenizer", processor)
    return LoadedModel(model, processor, tokenizer, _describe(source, revision, model, options), multimodal, backend)


def _locate(source: str) -> tuple[str, dict[str, Any]]:
    """What ``from_pretrained`` is given, and its options."""
    path = Path(source)
    if source.endswith(".gguf"):
        if not path.is_file():
            raise ModelError(f"{source}: no such file; name a .gguf file, a checkpoint folder or a hub id")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{source}: no config.json in the folder, so it is no Hugging Face checkpoint")
        return str(path), {}
    if path.exists():
        raise ModelError(f"{source}: a file, but not a .gguf one; name a checkpoint folder, a .gguf file or a hub id")
    if source.count("/") > 1 or source.startswith((".", "/", "~")):
        raise ModelError(f"{source}: no such folder; name a checkpoint folder, a .gguf file or a hub id")
    return source, {}


def _guarded(source: str, load: Any, *arguments: Any, **options: Any) -> Any:
    """Call a transformers loader; say in one line what it could not do."""
    try:
        return load(*arguments, **options)
    except ModelError:
        raise
    except ImportError as error:
        extra = "ecokv-cli[gguf]" if "gguf" in str(error).lower() else "the package it names"
        raise ModelError(f"{source}: {_short(error)}; install {extra}") from error
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        text = str(error)
        if "gated" in text.lower():
            raise ModelError(f"{source}: gated; accept its licence on the hub and set HF_TOKEN") from error
        if "trust_remote_code" in text:
            raise ModelError(f"{source}: needs code of its own; read it, then add --trust-remote-code") from error
        if "connect" in text or "offline" in text.lower() or "couldn't find" in text:
            raise ModelError(
                f"{source}: not in the local cache and the hub cannot be reached; "
                f"download it where there is a network, or name a checkpoint folder"
            ) from error
        raise ModelError(f"{source}: cannot be loaded ({_short(error)})") from error


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def _device(name: str) -> torch.device:
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"--device {name}: not available here ({_short(error)}); try auto or cpu") from None
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype | str:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if name not in DTYPES:
        raise UsageError(f"--dtype {name}: unknown, choose auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _describe(source: str, revision: str | None, model: Any, options: dict[str, Any]) -> ModelInfo:
    config = model.config
    text = config.get_text_config(decoder=True)
    queries = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // queries
    digest = hashlib.sha256(json.dumps(config.to_dict(), sort_keys=True, default=str).encode()).hexdigest()
    return ModelInfo(
        id=Path(source).name if Path(source).exists() else source,
        revision=getattr(config, "_commit_hash", None) or revision,
        architecture=type(model).__name__,
        model_type=config.model_type,
        config_sha256=digest,
        layers=text.num_hidden_layers,
        query_heads=queries,
        kv_heads=getattr(text, "num_key_value_heads", None) or queries,
        head_dim=head_dim,
        remote_code=bool(options["trust_remote_code"]),
    )
