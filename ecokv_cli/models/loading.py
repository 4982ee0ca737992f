"""Loading a model from a hub id, a checkpoint folder or a GGUF file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.utils import logging
from transformers.utils.hub import cached_file

from ecokv_cli.dump.schema import ModelInfo
from ecokv_cli.errors import ModelError, UsageError
from ecokv_cli.models.attention import use_backend
from ecokv_cli.models.fingerprint import config_digest, weights_digest
from ecokv_cli.models.gguf import parsed_once
from ecokv_cli.models.processors import load_processor
from ecokv_cli.models.support import require_supported, require_supported_config

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
    device_map: str | None = None,
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
    device_map
        How accelerate spreads the layers over several devices (``auto``, ``balanced``, ``sequential``); None puts the
        whole model on `device`.
    dtype
        ``auto`` is float32 on a CPU, where half precision is far slower, and the checkpoint's own elsewhere.
    backend
        ``sdpa`` or ``eager``.
    trust_remote_code
        Run code that comes with the checkpoint; the files are named in the manifest.

    Raises
    ------
    ModelError
        If nothing is found, it cannot be loaded, or it cannot be analysed.
    UsageError
        For an unknown device, dtype or back-end, or a revision of something that is no hub id.

    Notes
    -----
    Weights are read from safetensors or GGUF files only: a pickled checkpoint can run code when it is opened.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    where, options = _locate(source)
    if revision is not None and Path(source).exists():
        raise UsageError(f"--revision {revision}: {source} is on the disk; revisions are for hub ids")
    options |= {"revision": revision, "trust_remote_code": trust_remote_code}
    target = _device(device)
    weights = _weights(options, _dtype(dtype, target), device_map, device)
    with parsed_once() if "gguf_file" in options else nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = _guarded(source, AutoConfig.from_pretrained, where, **options)
        require_supported_config(config)
        multimodal = config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
        processor = _guarded(source, load_processor, where, config, multimodal=multimodal, **options)
        kind = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
        model, report = _guarded(
            source, kind.from_pretrained, where, config=config, output_loading_info=True, **weights, **options
        )
    _require_all_weights(source, report)
    model = (model if device_map else model.to(target)).eval()
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


def _weights(options: dict[str, Any], dtype: torch.dtype | str, device_map: str | None, device: str) -> dict[str, Any]:
    """Options of ``from_pretrained`` that concern the weights."""
    found: dict[str, Any] = {"dtype": dtype}
    if "gguf_file" not in options:
        found["use_safetensors"] = True
    if device_map is not None:
        if device != "auto":
            raise UsageError(f"--device-map {device_map} and --device {device} exclude each other; leave one out")
        if not importlib.util.find_spec("accelerate"):
            raise UsageError(f"--device-map {device_map}: needs accelerate; pip install 'ecokv-cli[accelerate]'")
        found["device_map"] = device_map
    return found


def _require_all_weights(source: str, report: dict[str, Any]) -> None:
    """Refuse a checkpoint in which weights are missing: transformers would draw them at random."""
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise ModelError(
            f"{source}: lacks {len(missing)} of its weights, such as {missing[0]}; get the checkpoint again"
        )


def _guarded(source: str, load: Any, *arguments: Any, **options: Any) -> Any:
    """Call a transformers loader; say in one line what it could not do."""
    try:
        return load(*arguments, **options)
    except ModelError:
        raise
    except ImportError as error:
        extra = "'ecokv-cli[gguf]'" if "gguf" in str(error).lower() else "the package it names"
        raise ModelError(f"{source}: {_short(error)}; install {extra}") from error
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # on damaged files loaders raise whatever they hit
        text = str(error)
        reason = next((reason for marks, reason in REASONS if any(mark in text for mark in marks)), None)
        raise ModelError(f"{source}: {reason or f'cannot be loaded ({_short(error)})'}") from error


REASONS = (
    (("gated", "Gated"), "gated; accept its licence on the hub and set HF_TOKEN"),
    (("trust_remote_code",), "needs code of its own; read it, then add --trust-remote-code"),
    (
        ("model.safetensors", "safetensors weights", "use_safetensors"),
        "has no safetensors weights, and pickled ones are never opened, as they can run code; "
        "save it again as safetensors, or name a revision that has them",
    ),
    (("valid git identifier", "RevisionNotFound"), "has no such --revision; name a branch, tag or commit of it"),
    (
        ("connect", "offline", "Offline", "couldn't find"),
        "not in the local cache and the hub cannot be reached; "
        "download it where there is a network, or name a checkpoint folder",
    ),
    (
        ("valid model identifier", "Repository Not Found", "RepositoryNotFound"),
        "the hub knows no such model, or it is private; check the name, or set HF_TOKEN",
    ),
)
"""What transformers and the hub library say, by words in it, and what that means to the user."""


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # A line that ends in a colon announces the next one.
    count = next((number for number, line in enumerate(lines, start=1) if not line.endswith(":")), len(lines))
    return " ".join(lines[:count])[:300]


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
    return ModelInfo(
        id=Path(source).name if Path(source).exists() else source,
        revision=None if Path(source).exists() else _commit(source, revision),
        architecture=type(model).__name__,
        model_type=config.model_type,
        config_sha256=config_digest(config.to_dict()),
        weights_sha256=weights_digest(model),
        layers=text.num_hidden_layers,
        query_heads=queries,
        kv_heads=getattr(text, "num_key_value_heads", None) or queries,
        head_dim=head_dim,
        remote_code=bool(options["trust_remote_code"]),
        code=_code(model),
    )


def _commit(source: str, revision: str | None) -> str | None:
    """The commit that a hub id was loaded at, from where its configuration lies in the cache."""
    found = cached_file(source, "config.json", revision=revision, local_files_only=True)
    snapshot = re.search(r"snapshots[/\\]([0-9a-f]{40})[/\\]", str(found))
    return snapshot[1] if snapshot else revision


def _code(model: Any) -> tuple[str, ...]:
    """Names and digests of the files of the checkpoint whose code the model runs."""
    kinds = {kind for part in model.modules() for kind in type(part).__mro__} | set(type(model.config).__mro__)
    own = {kind for kind in kinds if kind.__module__.startswith("transformers_modules.")}
    files = {Path(inspect.getfile(kind)) for kind in own}
    return tuple(sorted(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}" for file in files))
