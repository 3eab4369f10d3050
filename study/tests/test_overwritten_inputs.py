import os
from pathlib import Path

import numpy as np
import pytest

from study.chainer import trainings
from study.chainer.in_chainer import overwritten_inputs as detector
from tests.processes import ROOT, python


@pytest.fixture
def chainer():
    """The interpreter of .venv-chainer, or the test is skipped."""
    found = trainings.FOLDER / "bin" / "python"
    if not found.is_file():
        pytest.skip("no .venv-chainer: made by make chainer")
    return found


def test_what_was_overwritten_through_another_name_is_found():
    buffer = np.zeros((2, 3), np.float32)
    shared, copied, found = np.asarray(buffer), buffer.copy(), []
    entries = [detector.keep(shared), detector.keep(copied)]
    assert detector.report(found) == "no kept array was overwritten"
    buffer[...] = 1
    detector.compare(found, entries[0], shared, "shared", 1)
    detector.compare(found, entries[1], copied, "copied", 1)
    [finding] = found
    assert finding[:3] == ("shared", 1, (2, 3))
    assert finding.where.startswith("test_overwritten_inputs.py:")
    assert "overwritten before backward (1 times)" in detector.report(found)
    # The hash sees values and not layout.
    array = np.arange(6.0).reshape(2, 3).T
    assert detector.fingerprint(array) == detector.fingerprint(array.copy(order="C"))


# Three losses against one target buffer, then backward: the mistake and its cure.
HEAD = """
import numpy as np, overwritten_inputs as detector
def targets(copied):
    buffer = np.empty((1, 4), np.float32)
    for step in range(3):
        buffer[...] = step
        yield buffer.copy() if copied else buffer
for copied in (False, True):
"""
LOOPS = {
    "chainer": """
    import chainer
    with detector.watch_chainer() as found:
        w = chainer.Parameter(np.ones((1, 4), np.float32))
        loss = chainer.functions.mean_squared_error
        sum([loss(w, t) for t in targets(copied)]).backward()
""",
    "torch": """
    import torch
    with detector.watch_torch() as found:
        w = torch.ones((1, 4), requires_grad=True)
        loss = torch.nn.functional.mse_loss
        sum(loss(w, torch.from_numpy(t)) for t in targets(copied)).backward()
""",
}
TAIL = "    print(float(w.grad[0, 0])); print(detector.report(found))"


def run(executable, program, path=""):
    words = ("-W", "ignore", "-c", program)
    return python(*words, executable=executable, PYTHONPATH=str(path)).stdout.strip()


@pytest.mark.parametrize("library", LOOPS)
def test_the_mistake_is_found_and_a_correct_loop_is_not_accused(library, request):
    """PyTorch: where TORCH_PYTHON names a Python that has it."""
    interpreter = os.environ.get("TORCH_PYTHON")
    if library == "chainer":
        interpreter = request.getfixturevalue("chainer")
    elif interpreter is None:
        pytest.skip("TORCH_PYTHON is not set")
    program = HEAD + LOOPS[library] + TAIL
    said = run(interpreter, program, Path(detector.__file__).parent)
    wrong, found, right, clean = said.splitlines()
    # Targets 0, 1, 2 against a weight of 1: by hand 0, and -1.5 if all are 2.
    assert (wrong, right) == ("-1.5", "0.0")
    assert found.endswith("was overwritten before backward (2 times)")
    assert clean == "no kept array was overwritten"


def test_the_documents_one_line_example(chainer):
    text = (ROOT / "study" / "pages" / "chainer.md").read_text()
    [code] = [b for b in text.split("```py\n") if b.startswith("w = chainer")]
    code = code.split("```")[0]
    head = "import chainer, numpy as np, chainer.functions as F\n"
    for change, expected in (("", "-2.0"), ("y[...] = 5\n", "0.5")):
        program = head + code.replace(change, "", 1) + "print(w.grad[0])"
        assert run(chainer, program) == expected
