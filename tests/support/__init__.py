"""Helpers that several test files share; tests import from no other test file."""

import pytest

pytest.register_assert_rewrite("support.recipes", "support.workflows")
