from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_ci_runs_the_test_command_of_the_readme():
    commands = [
        line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("    python3 -m venv")
    ]
    main, test = commands
    assert main.endswith("ecokv run")
    assert test in (ROOT / ".ci" / "run").read_text().splitlines()
