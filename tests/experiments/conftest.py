"""What the tests of several scripts share."""

import pytest


@pytest.fixture
def refused():
    """`refused(done, message)`: a process ended with status 2 and one line."""

    def check(done, message):
        assert done.returncode == 2, done.stdout
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1

    return check
