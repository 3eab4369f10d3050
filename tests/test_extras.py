import configparser
from pathlib import Path

import pytest

from prednet_jax.errors import EXTRAS, missing_extra
from tests.processes import ROOT, python

# Name of the distribution, where it is not that of the module.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
    "vl_convert": "vl-convert-python",
}


def test_the_table_is_that_of_the_package_and_other_modules_are_left_alone():
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg")
    extras = declared["options.extras_require"]
    for module, extra in EXTRAS.items():
        assert DISTRIBUTIONS.get(module, module) in extras[extra], module
    assert missing_extra(ImportError("no", name="jaxx")) is None
    assert missing_extra(ImportError("no")) is None
    assert ".[study]" in missing_extra(ImportError("", name="scipy.stats"))


@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        # At the import of the script, and when it opens its data.
        ("vl_convert", "report", ["experiments/compare_backends.py"]),
        ("PIL", "data", ["experiments/train.py", "--updates=1"]),
    ],
)
def test_scripts_say_it_in_one_line(tmp_path, module, extra, command):
    folder = tmp_path / "out"
    argv = [*command, f"--workdir={folder}"]
    code = (
        f"import runpy, sys; sys.modules[{module!r}] = None; sys.argv = {argv!r}; "
        "sys.path.insert(0, 'experiments'); "
        f"runpy.run_path({command[0]!r}, run_name='__main__')"
    )
    (line,) = python("-c", code, status=2).stderr.strip().splitlines()
    assert line.startswith(Path(command[0]).name)
    assert f"pip install '.[{extra}]'" in line
    assert not folder.exists()


def test_without_the_package_a_script_names_what_is_missing():
    """As under a Python other than that of .venv."""
    code = (
        "import runpy, sys; sys.modules['absl'] = None; "
        "sys.path.insert(0, 'experiments'); "
        "runpy.run_path('experiments/train.py', run_name='__main__')"
    )
    said = python("-c", code, status=1).stderr
    assert "absl" in said.splitlines()[-1]
    assert "excepthook" not in said
