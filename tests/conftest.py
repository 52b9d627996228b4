"""Loads fixtures in the processes that run tests; the one that starts the workers of pytest-xdist needs none."""

import os

import pytest

# The models of the tests are so small that threads would only wait for each other. Before torch is imported, here and
# in the workers, which inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
# English, without a look for translations of its words by every parser of a command line.
os.environ["LANGUAGE"] = "C"

# Before anything imports them. Not in support/__init__.py: forked commands import that, and need no pytest.
pytest.register_assert_rewrite("support")


def pytest_configure(config):
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("support.session")
