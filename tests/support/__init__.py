"""Helpers that several test files share."""

import pytest

pytest.register_assert_rewrite("support.corpora", "support.recipes")
