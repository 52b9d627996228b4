"""The two storeys of the tests: those of every change, and rehearsals."""

import pytest


def sampled(cases, every):
    """Parameters of a test: one case in `every` is run with every change, the others in rehearsals."""
    return [
        pytest.param(*case, marks=pytest.mark.rehearsal if number % every else ()) for number, case in enumerate(cases)
    ]
