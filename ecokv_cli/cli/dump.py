"""``ecokv dump``: run a model once and write its keys, values and queries."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, command_line, guarded, table
from ecokv_cli.cli.machines import choose_engine, choose_share
from ecokv_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ecokv_cli.dump.runs import Run
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.models.settings import DumpSettings
    from ecokv_cli.models.source import ModelSource
    from ecokv_cli.sample.images import LoadedImage
    from ecokv_cli.sample.samples import Sample
    from ecokv_cli.sample.templates import ChatTemplate

EXAMPLES = """Examples:

ecokv dump                                     the shipped page and model

ecokv dump page.png -p "What is the total?" -m Qwen/Qwen2-VL-7B-Instruct

ecokv dump a.png b.png -p @question.txt -m ./my-checkpoint --decode 64

ecokv dump -p "Why is the sky blue?" -m SmolLM2-135M-Instruct.gguf

ecokv dump scan.tif --frame 3 -p "What is the total?" --system "Answer in one word."

ecokv dump --manifest samples.jsonl -o my-run  many samples; the same again goes on where it was ended
"""


def load_timed(
    screen: Screen, recipe: ModelSource, progress: Callable[[str, int, int], None]
) -> tuple[LoadedModel, float]:
    """The model, and how many seconds it took."""
    progress("load model", 0, 1)
    began = time.monotonic()
    loaded = recipe()
    progress("load model", 1, 1)
    seconds = time.monotonic() - began
    screen.detail(f"{loaded.info.id} loaded in {seconds:.1f} s on {loaded.model.device}")
    return loaded, seconds


@dataclass(frozen=True)
class ImageChoice:
    """How images are read."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    frame: int = 0

    def load(self, screen: Screen, sample: Sample) -> list[LoadedImage]:
        """The images of a sample; what was changed or left out on the way is said."""
        from ecokv_cli.sample.images import load_image

        images = [load_image(source, self.max_pixels, self.frame, self.min_pixels) for source in sample.images]
        for image in images:
            for note in image.notes:
                screen.note(f"{image.source}: {note}")
        return images


def choose_template(
    chat_template: str | None, system: str | None, *, plain: bool
) -> tuple[ChatTemplate | None, str | None]:
    """The chat template and the system message that the user gives, read before the model is loaded."""
    from ecokv_cli.sample.prompts import read_prompt
    from ecokv_cli.sample.templates import read_template

    if plain and (chat_template is not None or system is not None):
        option = "--system" if chat_template is None else "--chat-template"
        raise UsageError(f"{option} and --no-chat-template exclude each other; leave one out")
    return (
        None if chat_template is None else read_template(chat_template),
        None if system is None else read_prompt(system),
    )


def choose_sample(images: Sequence[str], prompt: str | None) -> Sample:
    """The user's sample, or the shipped one when neither image nor prompt is given."""
    from ecokv_cli.sample.names import sample_name
    from ecokv_cli.sample.prompts import is_blank, read_prompt
    from ecokv_cli.sample.samples import Sample
    from ecokv_cli.sample.shipped import default_sample
    from ecokv_cli.sample.sources import check_stdin_read_once

    if not images and prompt is None:
        return default_sample()
    if prompt is None:
        raise UsageError("no prompt; write one with --prompt TEXT, --prompt @FILE or --prompt -")
    check_stdin_read_once([*images, prompt])
    text = read_prompt(prompt)
    if not images and is_blank(text):
        raise UsageError("neither an image nor a prompt with text; give at least one")
    return Sample(sample_name(images[0] if images else ""), tuple(images), text)


def dump_step(
    screen: Screen,
    run: Run,
    sample: Sample,
    recipe: ModelSource,
    settings: DumpSettings,
    *,
    pictures: ImageChoice,
    force: bool,
) -> dict[str, Any]:
    """Load images and model, run it once, write the dump."""
    from ecokv_cli.dump.writer import require_writable
    from ecokv_cli.sample.prompts import is_blank

    folder = run.dump_folder / sample.id
    images = pictures.load(screen, sample)
    require_writable(folder, force=force)
    settings = replace(settings, max_pixels=pictures.max_pixels)
    if is_blank(sample.prompt):
        screen.note("the prompt is blank: the model sees the image and its chat template alone")
    with screen.progress() as progress:
        loaded, seconds = load_timed(screen, recipe, progress)
        from ecokv_cli.models.dumping import write_dump

        manifest = write_dump(
            loaded, sample, images, settings, folder, command=command_line(), force=force, progress=progress
        )
    for line in (*manifest.nonfinite(), *manifest.unplaced()):
        screen.note(line)
    roles = ", ".join(f"{count} {role}" for role, count in manifest.tokens.by_role().items())
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
        "stored": f"{manifest.bytes / 1e6:.1f} MB as {manifest.stored_dtype}",
        "time": ", ".join(f"{value:.2f} s {name}" for name, value in took.items()),
        "answer": manifest.decoded.text,
    }
    summary = {key.replace(" ", "_").replace("-", "_"): value for key, value in rows.items()}
    screen.show(table("", ("", ""), list(rows.items())))
    return {**summary, "seconds": manifest.seconds}


def run_for(output: Path | None, sample: Sample) -> Run:
    """The run folder the user named, or a new one."""
    from ecokv_cli.dump.runs import Run, new_run

    return Run(output) if output else new_run(sample.id)


@guarded
def command(
    images: o.Images = None,
    prompt: o.Prompt = None,
    manifest: o.ManifestFile = None,
    limit: o.ManifestLimit = None,
    keep_going: o.KeepGoing = False,
    min_pixels: o.MinPixels = None,
    max_pixels: o.MaxPixels = None,
    frame: o.Frame = 0,
    system: o.System = None,
    chat_template: o.TemplateFile = None,
    no_chat_template: o.NoTemplate = False,
    decode: o.Decode = 32,
    ignore_eos: o.IgnoreEos = False,
    window: o.DumpWindow = 32,
    received_attention: o.ReceivedAttention = False,
    prerope_keys: o.PreropeKeys = False,
    model: o.Model = None,
    revision: o.Revision = None,
    device: o.Device = "auto",
    device_map: o.DeviceMap = None,
    dtype: o.Dtype = "auto",
    attn_implementation: o.Attention = "sdpa",
    trust_remote_code: o.RemoteCode = False,
    store_dtype: o.StoreDtype = "auto",
    seed: o.Seed = 0,
    engine: o.EngineName = "local",
    address: o.Address = None,
    workers: o.Workers = None,
    num_cpus_per_worker: o.WorkerCpus = None,
    num_gpus_per_worker: o.WorkerGpus = None,
    shard: o.ShardOf = None,
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

    With --manifest the model is loaded once, and samples that the run folder already has are skipped.
    """
    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    from ecokv_cli.models.settings import DumpSettings
    from ecokv_cli.models.source import ModelSource
    from ecokv_cli.sample.sources import check_stdin_read_once

    check_stdin_read_once(s for s in (*(images or ()), prompt, manifest, system, chat_template) if s is not None)
    template, message = choose_template(chat_template, system, plain=no_chat_template)
    recipe = ModelSource(
        model, revision, device, dtype, attn_implementation, trust_remote_code, device_map, template, message
    )
    settings = DumpSettings(
        window,
        decode,
        ignore_eos,
        store_dtype,
        received_attention,
        prerope_keys,
        not no_chat_template,
        seed,
        max_pixels,
    )
    if manifest is not None:
        if images or prompt is not None:
            raise UsageError("--manifest brings images and prompts of its own; leave the others out, or leave it out")
        for option, given in (("--frame", frame > 0), ("--min-pixels", min_pixels is not None)):
            if given:
                raise UsageError(f"{option} is for one sample; give it without --manifest")
        from ecokv_cli.cli.dump_many import many_step

        machines = choose_engine(engine, address, workers, num_cpus_per_worker, num_gpus_per_worker)
        many_step(
            screen, manifest, recipe, settings, machines,
            output=output, limit=limit, keep_going=keep_going, force=force,
            share=choose_share(shard, [output] if output else None, "dump"),
        )  # fmt: skip
        return
    many = {
        "--limit": limit is not None, "--keep-going": keep_going, "--engine": engine != "local",
        "--shard": shard is not None,
    }  # fmt: skip
    for option, given in many.items():
        if given:
            raise UsageError(f"{option} is for many samples; give them with --manifest FILE")
    sample = choose_sample(images or (), prompt)
    run = run_for(output, sample)
    pictures = ImageChoice(min_pixels, max_pixels, frame)
    summary = dump_step(screen, run, sample, recipe, settings, pictures=pictures, force=force)
    named = f" {output}" if output else ""
    screen.finish(summary, f"next: ecokv analyze{named}, ecokv evict{named}")
