"""``ecokv dump``: run a model once and write its keys, values and queries."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, command_line, guarded, table
from ecokv_cli.errors import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ecokv_cli.dump.runs import Run
    from ecokv_cli.models.settings import DumpSettings

EXAMPLES = """Examples:

ecokv dump                                     the shipped page and model

ecokv dump page.png -p "What is the total?" -m Qwen/Qwen2-VL-7B-Instruct

ecokv dump a.png b.png -p @question.txt -m ./my-checkpoint --decode 64

ecokv dump -p "Why is the sky blue?" -m SmolLM2-135M-Instruct.gguf
"""


@dataclass(frozen=True)
class Sample:
    """What to dump: image sources, prompt, and a name for the folder."""

    images: tuple[str, ...]
    prompt: str
    name: str


@dataclass(frozen=True)
class ModelChoice:
    """Which model, and how to load it."""

    source: str | None
    revision: str | None
    device: str
    dtype: str
    attention: str
    trust_remote_code: bool


def choose_sample(images: Sequence[str], prompt: str | None) -> Sample:
    """The user's sample, or the shipped one when neither image nor prompt is given."""
    from ecokv_cli.dump.runs import sample_name
    from ecokv_cli.sample.prompts import is_blank, read_prompt
    from ecokv_cli.sample.shipped import default_sample
    from ecokv_cli.sample.sources import check_stdin_read_once

    if not images and prompt is None:
        shipped = default_sample()
        return Sample((str(shipped.image),), shipped.prompt, shipped.id)
    if prompt is None:
        raise UsageError("no prompt; write one with --prompt TEXT, --prompt @FILE or --prompt -")
    check_stdin_read_once([*images, prompt])
    text = read_prompt(prompt)
    if not images and is_blank(text):
        raise UsageError("neither an image nor a prompt with text; give at least one")
    return Sample(tuple(images), text, sample_name(images[0] if images else ""))


def dump_step(
    screen: Screen,
    run: Run,
    sample: Sample,
    choice: ModelChoice,
    settings: DumpSettings,
    *,
    max_pixels: int | None,
    force: bool,
) -> dict[str, Any]:
    """Load images and model, run it once, write the dump."""
    from ecokv_cli.sample.images import load_image

    folder = run.dump_folder / sample.name
    if folder.exists() and not force:
        raise OutputError(f"{folder} exists; add --force to replace it, or choose another run folder with --output")
    images = [load_image(source, max_pixels=max_pixels) for source in sample.images]
    for image in images:
        for note in image.notes:
            screen.note(f"{image.source}: {note}")
    with screen.progress() as progress:
        progress("load model", 0, 1)
        began = time.monotonic()
        from ecokv_cli.models.dumping import write_dump
        from ecokv_cli.models.loading import load_model
        from ecokv_cli.tiny import SHIPPED_MODEL

        loaded = load_model(
            choice.source or str(SHIPPED_MODEL),
            revision=choice.revision,
            device=choice.device,
            dtype=choice.dtype,
            backend=choice.attention,
            trust_remote_code=choice.trust_remote_code,
        )
        progress("load model", 1, 1)
        seconds = time.monotonic() - began
        screen.detail(f"{loaded.info.id} loaded in {seconds:.1f} s on {loaded.model.device}")
        manifest = write_dump(
            loaded, images, sample.prompt, settings, folder, command=command_line(), force=force, progress=progress
        )
    for record in manifest.layers:
        for tensor, count in record.nonfinite.items():
            screen.note(
                f"layer {record.index}: {tensor} holds {count} NaN or infinite numbers; analysis will refuse it"
            )
    roles = ", ".join(f"{count} {role}" for role, count in manifest.tokens.by_role().items())
    size = sum(record.bytes for record in manifest.layers)
    took = {"loading": seconds, "prefill": manifest.seconds["prefill"], "decoding": manifest.seconds["decode"]}
    shape = manifest.model
    rows = {
        "run": str(run.folder),
        "sample": manifest.sample,
        "model": f"{shape.id} ({shape.architecture})",
        "layers": f"{shape.layers}",
        "heads": f"{shape.query_heads} query, {shape.kv_heads} KV, dimension {shape.head_dim}",
        "prompt tokens": f"{len(manifest.tokens.ids)}: {roles}",
        "held-out queries": f"{manifest.decoded.fed_back}",
        "stored": f"{size / 1e6:.1f} MB as {manifest.stored_dtype}",
        "time": ", ".join(f"{value:.2f} s {name}" for name, value in took.items()),
        "answer": manifest.decoded.text,
    }
    summary = {key.replace(" ", "_").replace("-", "_"): value for key, value in rows.items()}
    screen.show(table("", ("", ""), list(rows.items())))
    return {**summary, "seconds": manifest.seconds}


def run_for(output: Path | None, sample: Sample) -> Run:
    """The run folder the user named, or a new one."""
    from ecokv_cli.dump.runs import Run, new_run

    return Run(output) if output else new_run(sample.name)


@guarded
def command(
    images: o.Images = None,
    prompt: o.Prompt = None,
    max_pixels: o.MaxPixels = None,
    chat_template: o.ChatTemplate = True,
    decode: o.Decode = 32,
    ignore_eos: o.IgnoreEos = False,
    window: o.DumpWindow = 32,
    received_attention: o.ReceivedAttention = False,
    prerope_keys: o.PreropeKeys = False,
    model: o.Model = None,
    revision: o.Revision = None,
    device: o.Device = "auto",
    dtype: o.Dtype = "auto",
    attn_implementation: o.Attention = "sdpa",
    trust_remote_code: o.RemoteCode = False,
    store_dtype: o.StoreDtype = "auto",
    seed: o.Seed = 0,
    output: o.Output = None,
    force: o.Force = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Run a model once on images and a prompt and write what its cache holds.

    One prefill, then a greedy answer; one sample at a time.

    Stored per layer: keys, values, the queries of the last positions, and all three of the decoded tokens.
    """
    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    sample = choose_sample(images or (), prompt)
    choice = ModelChoice(model, revision, device, dtype, attn_implementation, trust_remote_code)
    from ecokv_cli.models.settings import DumpSettings

    settings = DumpSettings(
        window, decode, ignore_eos, store_dtype, received_attention, prerope_keys, chat_template, seed
    )
    run = run_for(output, sample)
    summary = dump_step(screen, run, sample, choice, settings, max_pixels=max_pixels, force=force)
    screen.finish(summary, "next: ecokv analyze, ecokv evict")
