"""The `headgates` command: `main.py` finds the subcommand, each of which has a file of its own."""
