"""Moved to support/models.py."""

from support.models import *  # noqa: F403
