"""Loads fixtures in the processes that run tests; the one that starts the workers of pytest-xdist needs none."""

import pytest

# Before anything imports them. Not in support/__init__.py: forked commands import that, and need no pytest.
pytest.register_assert_rewrite("support")


def pytest_configure(config):
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("support.session")
