import configparser
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from prednet_jax import AutoencoderConfig, PredNetConfig, errors
from prednet_jax.noise import __main__ as command
from prednet_jax.runs.design import Setup
from prednet_jax.training.settings import Settings
from tests.processes import ROOT, python

NAN, INFINITY = float("nan"), float("inf")
# By check: what it accepts, what it refuses, and words of the refusal.
CHECKS = {
    errors.positive: ([1, 1e-30, np.float32(2)], [0, -1.0, NAN, INFINITY, True], "0"),
    errors.not_negative: ([0, 2.5], [-1.0, NAN, INFINITY, "1"], "0 or more"),
    errors.open_unit: ([0.05], [0, 1, -0.1, NAN, "0.5"], "between 0 and 1"),
    errors.decay: ([0.0], [1, -0.1, NAN, "0.5"], r"\[0, 1\)"),
}


@pytest.mark.parametrize("check", CHECKS)
def test_a_number_is_accepted_or_named(check):
    accepted, refused, words = CHECKS[check]
    for value in accepted:
        check("x", value)
    for value in refused:
        with pytest.raises(errors.UserError, match=rf"^x={value!r}: expected.*{words}"):
            check("x", value)


def test_whole_accepts_integers_and_refuses_everything_else():
    for value in (2, np.int32(7), 10):
        assert type(errors.check_int("n", value, 2, 10)) is int
    assert errors.check_int("n", 10**12, 2) == 10**12
    for value in (1, 11, 2.0, True, "3", None, np.float32(3)):
        with pytest.raises(ValueError, match=r"^n=.*from 2 to 10$"):
            errors.check_int("n", value, 2, 10)


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
    for module, extra in errors.EXTRAS.items():
        assert DISTRIBUTIONS.get(module, module) in extras[extra], module
    assert errors.missing_extra(ImportError("no", name="jaxx")) is None
    assert errors.missing_extra(ImportError("no")) is None
    assert ".[study]" in errors.missing_extra(ImportError("", name="scipy.stats"))


def without(module, *argv, status):
    """What a script says in a process that cannot import that module."""
    code = (
        f"import runpy, sys; sys.modules[{module!r}] = None; sys.argv = {[*argv]}; "
        "sys.path.insert(0, 'experiments'); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    return python("-c", code, status=status).stderr


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
    said = without(module, *command, f"--workdir={folder}", status=2)
    (line,) = said.strip().splitlines()
    assert line.startswith(Path(command[0]).name)
    assert f"pip install '.[{extra}]'" in line
    assert not folder.exists()


def test_without_the_package_a_script_names_what_is_missing():
    """As under a Python other than that of .venv."""
    said = without("absl", "experiments/train.py", status=1)
    assert "absl" in said.splitlines()[-1]
    assert "excepthook" not in said


def test_a_thread_that_waits_does_not_keep_a_script_after_an_error_of_the_disk():
    code = (
        "import sys, threading; sys.path.insert(0, 'experiments'); import _cli\n"
        "def main():\n"
        "    threading.Thread(target=threading.Event().wait).start()\n"
        "    raise PermissionError(13, '', '/a')\n"
        "_cli.run(main)"
    )
    assert "/a: Permission denied; expected" in python("-c", code, status=2).stderr


FLAG = re.compile(r"(?<![\w-])--(?!xla_)([a-z][a-z_]+)(?![\w-])")
# absl's, and those of pip, git, ps and an example.
OTHERS = {
    "help",
    "helpshort",
    "noprogress",
    "only_check_args",
    "target",
    "upgrade",
    "porcelain",
}
OTHERS |= {"format", "flag", "quiet", "noplot"}
# saddle_escape.py defines these in a loop.
OTHERS |= {"functions", "optimizers", "form"}


def test_every_flag_in_a_message_is_defined():
    # What `_flags.define_fields` makes flags of.
    records = (Setup, PredNetConfig, AutoencoderConfig)
    known = {field.name for record in records for field in dataclasses.fields(record)}
    known |= set(Settings().values())
    known |= OTHERS | set(command.FLAGS)
    folders = (ROOT / "prednet_jax", ROOT / "experiments")
    texts = {p: p.read_text() for folder in folders for p in folder.rglob("*.py")}
    for text in texts.values():
        known |= set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', text))
        known |= set(re.findall(r'add_argument\(\s*f?"--(\w+)"', text))
    assert {"workdir", "allow_outside", "init_weights"} <= known
    for path, text in texts.items():
        named = set(FLAG.findall(text))
        # A switch is turned off by its name after `no`.
        unknown = {n for n in named - known if n.removeprefix("no") not in known}
        assert not unknown, path
