"""``ecokv validate``: whether a dump is what its manifest says."""

from __future__ import annotations

from dataclasses import asdict

from ecokv_cli.cli import options as o
from ecokv_cli.cli.console import Screen, guarded
from ecokv_cli.errors import DumpError

EXAMPLES = """Examples:

ecokv validate                                 the latest run

ecokv validate ecokv-runs/my-run --json | jq .faults
"""


@guarded
def command(
    path: o.RunPath = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    debug: o.Debug = False,  # noqa: ARG001 - read by guarded
) -> None:
    """Check every file of a dump: size, sha256, names, kinds and shapes of tensors, NaN and infinity by layer and head.

    Prints one line per fault; exit 1 if there is any. Neither the model nor torch is loaded.
    """
    from ecokv_cli.dump.runs import find_run
    from ecokv_cli.dump.validation import faults

    screen = Screen(quiet=quiet, verbose=verbose, as_json=json)
    run = find_run(path)
    folders = run.sample_folders()
    found = []
    with screen.progress() as progress:
        for number, folder in enumerate(folders):
            progress("samples", number, len(folders))
            for fault in faults(folder, lambda done, total: progress("layers", done, total)):
                found.append(fault)
                where = "" if fault.layer is None else f"layer {fault.layer}: "
                screen.say(f"{run.dump_folder / fault.sample / fault.file}: {where}{fault.found}")
        progress("samples", len(folders), len(folders))
    summary = {"run": str(run.folder), "samples": len(folders), "faults": [asdict(fault) for fault in found]}
    screen.finish(summary, "" if found else f"{run.folder}: no fault in {_count(len(folders), 'sample')}")
    if found:
        raise DumpError(f"{run.folder}: {_count(len(found), 'fault')}; dump the samples concerned again")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
