"""``python -m ecokv_cli``."""

from ecokv_cli.cli.main import main

main()
