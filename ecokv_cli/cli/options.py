"""Options that several subcommands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SAMPLE, MODEL, OUTPUT, SHOW, MACHINES = "Sample", "Model", "Output", "Messages", "Machines"

Images = Annotated[
    list[str] | None,
    typer.Argument(
        help="Image files, or - for standard input; without image and prompt the shipped sample is used.",
        show_default=False,
    ),
]
Prompt = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        "-p",
        help="The question; - reads standard input, @FILE a file.",
        rich_help_panel=SAMPLE,
        show_default=False,
    ),
]
ManifestFile = Annotated[
    str | None,
    typer.Option(
        "--manifest",
        help="Many samples instead: a JSONL file of image(s), prompt, id, answers, boxes; - reads standard input.",
        rich_help_panel=SAMPLE,
        show_default=False,
    ),
]
ManifestLimit = Annotated[
    int | None, typer.Option("--limit", help="Only the first N samples of --manifest.", min=1, rich_help_panel=SAMPLE)
]
KeepGoing = Annotated[
    bool,
    typer.Option(
        "--keep-going", help="Go on after a sample of --manifest that fails; exit 1 at the end.", rich_help_panel=SAMPLE
    ),
]
MaxPixels = Annotated[
    int | None, typer.Option(help="Scale larger images down to this many pixels.", rich_help_panel=SAMPLE)
]
MinPixels = Annotated[
    int | None, typer.Option(help="Scale smaller images up to this many pixels.", rich_help_panel=SAMPLE)
]
Frame = Annotated[
    int, typer.Option(help="Frame of an animation, or page of a TIFF, to take; from 0.", min=0, rich_help_panel=SAMPLE)
]
System = Annotated[
    str | None,
    typer.Option(
        "--system",
        help="A system message before the prompt; - reads standard input, @FILE a file.",
        rich_help_panel=SAMPLE,
        show_default=False,
    ),
]
TemplateFile = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        help="A Jinja file, or the name of one of the model's templates.  [default: the model's own]",
        rich_help_panel=SAMPLE,
        show_default=False,
    ),
]
NoTemplate = Annotated[
    bool, typer.Option("--no-chat-template", help="Feed the prompt as it is.", rich_help_panel=SAMPLE)
]
ChatTemplate = Annotated[
    bool, typer.Option(help="Use the model's chat template, or feed the prompt as it is.", rich_help_panel=SAMPLE)
]

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Hub id, checkpoint folder or .gguf file; the shipped model if left out.",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.", rich_help_panel=MODEL)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps ...", rich_help_panel=MODEL)]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        "--device-map",
        help="Spread the layers over several devices: auto, balanced, sequential (needs accelerate).",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", "--torch-dtype", help="Compute in auto, float32, bfloat16 or float16.", rich_help_panel=MODEL
    ),
]
Attention = Annotated[str, typer.Option("--attn-implementation", help="sdpa or eager.", rich_help_panel=MODEL)]
RemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the checkpoint.", rich_help_panel=MODEL)
]

DumpWindow = Annotated[
    int, typer.Option(help="Queries of the last W prompt positions to store.", min=1, rich_help_panel=SAMPLE)
]
Decode = Annotated[
    int,
    typer.Option(
        help="Decode at most this many tokens; their queries are held out to judge selections.",
        min=0,
        rich_help_panel=SAMPLE,
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Decode on past end of sequence.", rich_help_panel=SAMPLE)
]
StoreDtype = Annotated[
    str, typer.Option(help="Store as auto (as computed), float32, bfloat16 or float16.", rich_help_panel=OUTPUT)
]
ReceivedAttention = Annotated[
    bool,
    typer.Option(
        "--received-attention",
        help="Also store the attention every position receives from all queries (time grows with N x N).",
        rich_help_panel=SAMPLE,
    ),
]
PreropeKeys = Annotated[
    bool, typer.Option("--prerope-keys", help="Also store keys before rotary embedding.", rich_help_panel=SAMPLE)
]

RunPath = Annotated[
    Path | None, typer.Argument(help="A run folder; the latest under ./ecokv-runs if left out.", show_default=False)
]
Heads = Annotated[str, typer.Option(help="KV heads: all, or a list such as 0,2-3.")]
Limit = Annotated[int | None, typer.Option(help="Only the first N samples of the run.", min=1)]
Layers = Annotated[str, typer.Option(help="all, or a list such as 0-3,7,-1.")]
Budgets = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        "-b",
        help="Tokens kept per KV head and layer, window included; repeat or write 64,128.  [default: 64]",
        show_default=False,
    ),
]
BudgetRatios = Annotated[
    list[str] | None,
    typer.Option(
        "--budget-ratio",
        "-r",
        help="Share of each prompt's tokens, such as 0.25, in place of --budget or beside it; repeat or write 0.1,0.25.",
        show_default=False,
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="host[option=value]+booster[option=value]; repeat for several.  [default: full, random, snapkv, keydiff, snapkv+mixkv, snapkv+ecokv, oracle]",
        show_default=False,
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        "--window", "-w", help="Same window for all methods (a matched comparison); else each method's own.", min=1
    ),
]
HeadScoresFile = Annotated[
    Path | None,
    typer.Option("--head-scores", help="Table of `ecokv headscores`, which sparsemm needs.", show_default=False),
]
Booster = Annotated[
    str, typer.Option("--booster", help="The ecokv method whose importance, diversity and lambda are analysed.")
]
Pairs = Annotated[
    int,
    typer.Option(
        help="Pairs sampled per head for the distribution of cosines, beyond 4096 tokens; up to these all are counted.",
        min=100,
    ),
]
Pca = Annotated[
    list[str] | None,
    typer.Option(
        "--pca",
        help="LAYER:HEAD to draw; repeat for several.  [default: first, middle and last layer, head 0]",
        show_default=False,
    ),
]
Focus = Annotated[
    str | None,
    typer.Option(
        "--focus",
        help="LAYER:HEAD whose kept positions are drawn alone.  [default: middle layer, head 0]",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn at random.", min=0)]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Run folder.  [default: ./ecokv-runs/<time>-<sample>]",
        rich_help_panel=OUTPUT,
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing results.", rich_help_panel=OUTPUT)]
RunPaths = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Run folders, results go into the first; the latest under ./ecokv-runs if left out.", show_default=False
    ),
]
GoOn = Annotated[
    bool, typer.Option("--keep-going", help="Leave out a sample that fails, and say so; exit 1 at the end.")
]
Figures = Annotated[
    str, typer.Option("--figures", help="all, none, or names, comma-separated.", rich_help_panel=OUTPUT)
]
Format = Annotated[
    str, typer.Option("--format", help="Figure files: any of pdf, png, svg, comma-separated.", rich_help_panel=OUTPUT)
]
Width = Annotated[
    str,
    typer.Option(
        "--width", help="Figure width: single (3.3 in), double (6.9 in) or inches, 3 to 20.", rich_help_panel=OUTPUT
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.", rich_help_panel=SHOW)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.", rich_help_panel=SHOW)]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on the way.", rich_help_panel=SHOW)]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.", rich_help_panel=SHOW)]

EngineName = Annotated[
    str,
    typer.Option("--engine", help="local, or ray: a pool of workers (needs the extra ray).", rich_help_panel=MACHINES),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Ray cluster to join: HOST:PORT, or auto.  [default: RAY_ADDRESS, else Ray is started here]",
        rich_help_panel=MACHINES,
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="How many workers.  [default: as many as there is room for]",
        min=1,
        rich_help_panel=MACHINES,
        show_default=False,
    ),
]
WorkerCpus = Annotated[
    float | None,
    typer.Option(
        "--num-cpus-per-worker",
        help="CPUs of each worker.  [default: 1]",
        min=0,
        rich_help_panel=MACHINES,
        show_default=False,
    ),
]
WorkerGpus = Annotated[
    float | None,
    typer.Option(
        "--num-gpus-per-worker",
        help="GPUs of each worker, or a share of one.  [default: 1 where the cluster has any]",
        min=0,
        rich_help_panel=MACHINES,
        show_default=False,
    ),
]
ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard",
        help="I/N: only every N-th sample, from number I on, which counts from 0; put together by ecokv merge.",
        rich_help_panel=MACHINES,
        show_default=False,
    ),
]
