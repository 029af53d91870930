import pytest

from ..conftest import Golden


@pytest.fixture(scope="module")
def frequencies_file():
    """Frequencies and penalties that the authors' code computed."""
    return Golden("frequencies")
