"""Counts of the cases are complete when the tests have ended."""

from tests.fuzz.helpers import write_counts


def pytest_sessionfinish():
    write_counts()
