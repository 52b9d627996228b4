"""Moved to support/commands.py."""

from support.commands import *  # noqa: F403
