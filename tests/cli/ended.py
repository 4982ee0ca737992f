"""Running the command in a process that ends itself by a signal at a given point."""

import subprocess
import sys

SCRIPT = """
import importlib, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
where, turn, number, *arguments = sys.argv[1:]
module, _, name = where.partition(":")
owner = importlib.import_module(module)
*parents, last = name.split(".")
for parent in parents:
    owner = getattr(owner, parent)
function, calls = getattr(owner, last), 0

def counting(*given, **options):
    global calls
    calls += 1
    if calls == int(turn):
        print("reached", file=sys.stderr, flush=True)
        os.kill(os.getpid(), int(number))
    return function(*given, **options)

setattr(owner, last, counting)
sys.argv = ["ecokv", *arguments]
from ecokv_cli.cli.main import main
main()
"""


def run_ended(folder, where, turn, number, *arguments):
    """Run ``ecokv`` with `arguments`, sending it the signal as `where` is called for the `turn`-th time.

    `where` is ``module:name``; the module must be one in which the caller looks the name up.
    """
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, where, str(turn), str(int(number)), *map(str, arguments)],
        capture_output=True, text=True, cwd=folder, check=False, timeout=180,
    )  # fmt: skip
    assert "reached" in done.stderr, done.stderr
    return done
