"""The ``ecokv`` command."""

from __future__ import annotations

from typing import Annotated

import typer

from ecokv_cli import __version__
from ecokv_cli.cli import (
    ablate,
    analyze,
    compare,
    dump,
    evaluate,
    evict,
    headscores,
    info,
    merge,
    methods,
    route,
    run,
    validate,
)

EXAMPLES = """Examples:

ecokv run                                      the shipped sample and model, all three steps

ecokv dump page.png -p "What is the total?" -m Qwen/Qwen2-VL-7B-Instruct

ecokv analyze --layers all                     geometry of the latest dump

ecokv evict --budget 64,128,256                simulated eviction on the latest dump
"""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=EXAMPLES,
    # Both --attn-implementation and --attn_implementation are in use among tools of this field.
    context_settings={
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
    },
)


def _version(value: bool) -> None:
    if value:
        from ecokv_cli.dump.versions import versions

        found = versions()
        beside = ", ".join(f"{name} {found[name]}" for name in ("python", "torch", "transformers") if name in found)
        typer.echo(f"ecokv {__version__} ({beside}); ecokv info --env tells the rest")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show versions.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Offline analysis of KV-cache geometry and eviction in multimodal language models.

    dump runs a model once and writes what its cache holds; analyze and evict work on that; run does all three.

    evaluate decodes on evicted caches and reports accuracy; compare puts two runs side by side.

    info describes a run or the installation; validate checks every file of a dump.

    methods lists what can be simulated; headscores and route make a head-score table and a layer-wise route from dumps.
    """


app.command("dump", epilog=dump.EXAMPLES)(dump.command)
app.command("analyze", epilog=analyze.EXAMPLES)(analyze.command)
app.command("evict", epilog=evict.EXAMPLES)(evict.command)
app.command("evaluate", epilog=evaluate.EXAMPLES)(evaluate.command)
app.command("ablate", epilog=ablate.EXAMPLES)(ablate.command)
app.command("run", epilog=run.EXAMPLES)(run.command)
app.command("compare", epilog=compare.EXAMPLES)(compare.command)
app.command("merge", epilog=merge.EXAMPLES)(merge.command)
app.command("info", epilog=info.EXAMPLES)(info.command)
app.command("validate", epilog=validate.EXAMPLES)(validate.command)
app.command("methods", epilog=methods.EXAMPLES)(methods.command)
app.command("headscores", epilog=headscores.EXAMPLES)(headscores.command)
app.command("route", epilog=route.EXAMPLES)(route.command)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
