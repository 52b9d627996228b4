"""Helpers that several test files share; tests import from no other test file."""
