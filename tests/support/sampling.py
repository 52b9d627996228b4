"""Parameters of tests that run in part with every change, and in part in rehearsals."""

import pytest


def sampled(cases, every):
    """Return parameters of a test: one case in `every` runs with every change, the others in rehearsals."""
    return [
        pytest.param(*case, marks=pytest.mark.rehearsal if number % every else ()) for number, case in enumerate(cases)
    ]
