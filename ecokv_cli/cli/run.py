"""``ecokv run``: dump, analyze and evict in one go."""

from __future__ import annotations

from ecokv_cli.cli import options as o
from ecokv_cli.cli.analyze import analyze_step
from ecokv_cli.cli.common import FigureChoice
from ecokv_cli.cli.console import Screen, guarded
from ecokv_cli.cli.dump import ImageChoice, choose_sample, choose_template, dump_step, run_for
from ecokv_cli.cli.evict import choose_budgets, evict_step

EXAMPLES = """Examples:

ecokv run                                      the shipped page and model

ecokv run page.png -p "What is the total?" -m Qwen/Qwen2-VL-7B-Instruct -b 64,128,256
"""


@guarded
def command(
    images: o.Images = None,
    prompt: o.Prompt = None,
    budget: o.Budgets = None,
    budget_ratio: o.BudgetRatios = None,
    method: o.Methods = None,
    window: o.Window = None,
    head_scores: o.HeadScoresFile = None,
    layers: o.Layers = "all",
    heads: o.Heads = "all",
    min_pixels: o.MinPixels = None,
    max_pixels: o.MaxPixels = None,
    frame: o.Frame = 0,
    system: o.System = None,
    chat_template: o.TemplateFile = None,
    no_chat_template: o.NoTemplate = False,
    decode: o.Decode = 32,
    ignore_eos: o.IgnoreEos = False,
    received_attention: o.ReceivedAttention = False,
    model: o.Model = None,
    revision: o.Revision = None,
    device: o.Device = "auto",
    device_map: o.DeviceMap = None,
    dtype: o.Dtype = "auto",
    attn_implementation: o.Attention = "sdpa",
    trust_remote_code: o.RemoteCode = False,
    store_dtype: o.StoreDtype = "auto",
    seed: o.Seed = 0,
    output: o.Output = None,
    force: o.Force = False,
    figure_names: o.Figures = "all",
    figure_format: o.Format = "pdf,png",
    width: o.Width = "double",
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Dump, analyze and evict in one go, and say where the report is."""
    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    figures = FigureChoice.parse(figure_format, width, figure_names, ("analysis", "eviction"))
    budgets = choose_budgets(budget, budget_ratio)
    from ecokv_cli.models.settings import DumpSettings
    from ecokv_cli.models.source import ModelSource
    from ecokv_cli.sample.sources import check_stdin_read_once

    check_stdin_read_once(s for s in (*(images or ()), prompt, system, chat_template) if s is not None)
    template, message = choose_template(chat_template, system, plain=no_chat_template)
    sample = choose_sample(images or (), prompt)
    recipe = ModelSource(
        model, revision, device, dtype, attn_implementation, trust_remote_code, device_map, template, message
    )
    settings = DumpSettings(
        window=max(32, window or 0), decode=decode, ignore_eos=ignore_eos, store_dtype=store_dtype,
        received_attention=received_attention, template=not no_chat_template, seed=seed,
    )  # fmt: skip
    run = run_for(output, sample)
    pictures = ImageChoice(min_pixels, max_pixels, frame)
    dumped = dump_step(screen, run, sample, recipe, settings, pictures=pictures, force=force)
    samples = run.samples()
    analysis = analyze_step(
        screen, run, samples, figures, layers=layers, heads=heads,
        booster="snapkv+ecokv", window=window, pairs=20_000, seed=seed,
        pca=(), keep_going=False, force=force,
    )  # fmt: skip
    eviction = evict_step(
        screen, run, samples, figures, layers=layers, heads=heads,
        methods=method or (), budgets=budgets, window=window, head_scores=head_scores,
        focus=None, seed=seed, keep_going=False, force=force,
    )  # fmt: skip
    summary = {"dump": dumped, "analysis": analysis, "eviction": eviction, "report": eviction["report"]}
    screen.finish(summary, f"report: {eviction['report']}")
