"""What the commands of the core do: a file for each command of `cli/commands`."""
