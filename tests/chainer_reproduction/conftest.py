"""Where Chainer is."""

import pytest

from chainer_reproduction import environment


@pytest.fixture
def chainer():
    """The interpreter of .venv-chainer, or the test is skipped."""
    python = environment.FOLDER / "bin" / "python"
    if not python.is_file():
        pytest.skip("no .venv-chainer: made by make chainer")
    return python
