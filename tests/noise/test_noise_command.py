"""`python -m prednet_jax.noise`, as a process only where that matters."""

import json
import os
import shutil
import stat
import sys
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest

from prednet_jax import noise
from prednet_jax.noise.__main__ import COMMANDS, main
from tests.processes import ROOT, SCRIPTS, python

PROGRAM = """
import jax
import jax.numpy as jnp

print("what a module prints is no part of the answer")
CONSTANT = 3


def loss(x, w, scale=1.0):
    h = jnp.tanh(x @ w)  # <b>&
    return jnp.mean(h * scale), jnp.argmax(h, axis=1)


def named(x):
    return {"y": jnp.sum(x, axis=1)}


def other(x):
    return {"y": jnp.sum(x, axis=1) + 0.1}


def model(params, x):
    return {"out": {"y": x @ params["Dense_0"]["kernel"]}}


from collections import OrderedDict
from typing import NamedTuple


class Outputs(NamedTuple):
    out: OrderedDict


def ordered(params, x):
    return Outputs(OrderedDict(y=x @ params["Dense_0"]["kernel"]))


def task(x):
    def step(w, batch):
        return w - 0.1 * w * jnp.sum(batch), jnp.sum((w * batch) ** 2)

    return step, x[0], list(x)


def both(x):
    return abs(x) + 1, abs(x) + 1.5


def weights():
    return {"w": jnp.ones((3, 64))}


def logits(x, w):
    return x @ w


class Model:
    def apply(x):
        return x
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # A name of its own: modules stay loaded.
    name = "program_" + tmp_path.name.replace("-", "_")
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((4, 64), (64, 3)))
    np.savez("positional.npz", x, w)
    np.savez("mixed.npz", x, w=w, scale=np.float32(2))
    np.savez("one.npz", x)
    np.savez("odd.npz", x, w, other=w)
    np.savez("model.npz", **{"params/Dense_0/kernel": w, "x": x})
    np.savez("folders.npz", **{"params/Dense_0": w, "params/Dense_0/kernel": w})
    np.savez("out.npz", **{"out/y": x @ w})
    np.savez("l.npz", x @ w)
    np.savez("sum.npz", y=x.sum(1), z=x.sum(1))
    np.savez("texts.npz", np.array(["a"]))
    np.savez("four.npz", np.ones(4))
    np.savez("a.npz", np.float32(0.1), np.zeros(4, np.int32))
    np.savez("big.npz", x.astype(">f4"))
    with zipfile.ZipFile("text.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    os.mkfifo("pipe.npz")
    (tmp_path / "broken.npz").write_text("no archive")
    (tmp_path / "empty.npz").write_text("")
    return name


def asked(capsys, *argv):
    status = main(argv)
    return status, *capsys.readouterr()


def test_as_a_process_in_the_current_directory(folder):
    """What python -m does: the current directory is where the module is."""
    words = ("coverage", f"{folder}:loss", "--args=positional.npz", "--json")
    command = ("-m", "prednet_jax.noise", *words)
    done = python(*command, folder=None, PYTHONPATH=str(ROOT))
    found = json.loads(done.stdout)
    assert found["function"] == f"{folder}:loss"
    assert [e["primitive"] for e in found["perturbed"]] == ["dot_general", "reduce_sum"]
    assert found["perturbed"][0]["source"] == f"{folder}.py:10 in loss"


@pytest.mark.fault
def test_a_name_that_is_no_text_can_be_printed(folder):
    words = ("record", f"{folder}:named", "--args=one.npz", "--output=r\udcff.npz")
    strict = {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8:strict"}
    done = python("-m", "prednet_jax.noise", *words, folder=None, **strict)
    assert done.stdout.endswith("r\\udcff.npz\n")
    assert noise.load_recording("r\udcff.npz").function == "named"


@pytest.mark.fault
@pytest.mark.parametrize(
    ("error", "status", "told"),
    [(BrokenPipeError(32, ""), 141, ""), (OSError(28, "disk full"), 1, "disk full\n")],
)
def test_an_output_that_nobody_reads_ends_without_a_traceback(
    folder, monkeypatch, capsys, error, status, told
):
    """Nor does `main` end the process of a caller."""
    monkeypatch.setattr("sys.stdout", Mock(write=Mock(side_effect=error)))
    assert main(["coverage", f"{folder}:named", "--args=one.npz"]) == status
    assert capsys.readouterr().err.endswith(told)


@pytest.mark.fault
def test_a_platform_that_is_not_here_and_a_closed_output(folder):
    """JAX's traceback was shown; a closed output has nowhere to show an answer."""
    words = ("first_nan", f"{folder}:named", "--args=one.npz")
    command = ("-m", "prednet_jax.noise", *words)
    own = {"PYTHONPATH": str(ROOT)}
    done = python(*command, folder=None, status=2, JAX_PLATFORMS="cuda,nope", **own)
    assert "Traceback" not in done.stderr
    assert "JAX_PLATFORMS=cuda,nope: Unable to initialize backend" in done.stderr
    arguments = [sys.executable, *command]
    script = f"import os, sys; os.close(1); os.execv(sys.executable, {arguments})"
    assert "Traceback" not in python("-c", script, folder=None, **own).stderr
    done = python(*command, folder=None, status=2, JAX_ENABLE_X64="maybe", **own)
    assert "invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.fault
def test_a_full_or_closed_stderr_changes_no_status(tmp_path):
    """It was 1 instead of 2, and a training ended where its stderr was closed."""
    small = "--model=autoencoder --hidden=2 --height=4 --width=4 --noplot"
    train, own = SCRIPTS / "train.py", {"PYTHONPATH": str(ROOT)}
    tool = "-m", "prednet_jax.noise", "digits", "m:f", "--args=none.npz"
    for words, status, variables in (
        (tool, 2, {}),
        (tool, 2, {"JAX_ENABLE_X64": "maybe"}),
        ((train, f"--workdir={tmp_path}/r", "--updates=0"), 2, {}),
        ((train, f"--workdir={tmp_path}/r", "--updates=2", *small.split()), 0, {}),
    ):
        arguments = [sys.executable, *map(str, words)]
        for change in ("os.dup2(os.open('/dev/full', os.O_WRONLY), 2)", "os.close(2)"):
            script = f"import os, sys; {change}; os.execv(sys.executable, {arguments})"
            python("-c", script, folder=None, status=status, **own, **variables)
            shutil.rmtree(tmp_path / "r", ignore_errors=True)


#: Commands and a part of their answers; of audit and tolerances in tests of their own.
ANSWERS = [
    ("coverage {}:loss --args=mixed.npz", "{}.py:10 in loss"),
    ("coverage {}:named --args=big.npz", "{}.py:15 in named"),
    ("localize {}:named --args=one.npz", "{}.py:15 in named"),
    ("decisions {}:loss --args=mixed.npz", "argmax"),
    ("digits {}:named --args=one.npz", "['y'] float32[4]"),
    ("tolerance {}:named --args=one.npz", "['y']  rtol"),
    ("invariance {}:named --args=one.npz", "rows in reverse"),
    ("devices {}:loss --args=positional.npz --mesh=data=2", "not modelled"),
    ("devices {}:loss --args=positional.npz --mesh=data=1,2", "norm of the rest"),
    ("record {}:named --args=one.npz --output=r.npz", "r.npz"),
    ("first_nan {}:named --args=one.npz", "no equation makes"),
    ("nan_rate {}:named --args=one.npz", "0 of 2 runs under noise"),
    ("cancellations {}:named --args=one.npz", "sums; error of the result"),
    ("training {}:task --args=one.npz", "half width"),
    (
        "training {}:task --args=one.npz --losses=four.npz",
        "beyond: loss leaves the band",
    ),
    ("curves {}:both --args=one.npz", "cannot tell: p"),
    (
        "first_difference {}:other --args=one.npz --recording=r.npz",
        "{}.py:19 in other",
    ),
    ("compare_layers {}:other --args=one.npz --reference=sum.npz", "an offset of"),
    (
        "compare_layers {}:other --args=one.npz --reference=sum.npz --names=y=z",
        "{}.py:19 in other",
    ),
    ("compare_trees {}:weights --reference=positional.npz", "unmatched there"),
    (
        "compare_logits {}:logits --args=positional.npz --a=l.npz --b=l.npz",
        "cause of the difference: identical",
    ),
    # Names with slashes are the places of nested dictionaries.
    (
        "explain {}:model --args=model.npz --a=out.npz --b=out.npz",
        "['out']['y']  identical",
    ),
    (
        "explain {}:ordered --args=model.npz --a=out.npz --b=out.npz",
        ".out['y']  identical",
    ),
]


@pytest.mark.parametrize(("command", "expected"), ANSWERS)
def test_text_and_json(folder, capsys, command, expected):
    if "r.npz" in command:
        asked(capsys, "record", f"{folder}:named", "--args=one.npz", "--output=r.npz")
    argv = command.format(folder).split()
    argv += ["--specs=data;-"] * (argv[0] == "devices")
    few = "4" if argv[0] == "training" else "2"
    without = "coverage", "record", "first_nan", "curves", "compare_trees"
    argv += [f"--draws={few}"] * (argv[0] not in without)
    status, text, _ = asked(capsys, *argv)
    assert status == 0
    assert expected.format(folder) in text
    status, out, _ = asked(capsys, *argv, "--json")
    assert status == 0
    found = json.loads(out)
    assert (found["command"], found["function"]) == tuple(argv[:2])
    assert found["noise"].startswith(("reduction_order", "none"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("coverage {}:nothing --args=one.npz", "no 'nothing' there; expected one of "),
        ("coverage {}:CONSTANT", "is int: expected a function"),
        (
            "coverage no_such_module:f",
            "No module named 'no_such_module': expected a module",
        ),
        ("coverage ./{}:loss", "expected MODULE:FUNCTION, such as model:loss of ./"),
        ("coverage {}:Model.nothing", "no 'nothing' there; expected one of"),
        ("coverage {}:CONSTANT.nothing", "no 'nothing' there; expected a function"),
        ("coverage {one} --zap=a\nb", "--zap=a b: coverage takes"),
        ("coverage {}:named --args=text.npz", "text.npz: expected a file of arrays"),
        ("coverage {}:named --args=pipe.npz", "pipe.npz: expected a file of arrays"),
        ("first_difference {one} --recording=pipe.npz", "pipe.npz: expected a record"),
        ("record {one} --output=pipe.npz", "it is a directory, a pipe or a device"),
        ("coverage {}:loss", "without --args: missing a required argument"),
        ("coverage {}:loss --args=one.npz", "missing a required argument: 'w'"),
        ("coverage {}:loss --args=odd.npz", "unexpected keyword argument 'other'"),
        ("coverage {}:loss --args=absent.npz", "expected a file of arrays"),
        ("coverage {}:named --args=texts.npz", "expected numbers"),
        ("coverage {}:model --args=folders.npz", "folder of arrays"),
        ("coverage {one} --noise=zap", "unknown kind 'zap'"),
        ("decisions {one} --labels=one.npz", "of type float32"),
        ("localize {one} --parts=inner", "nothing in 'inner'"),
        ("invariance {one} --batch=x", "--batch=x: expected pos"),
        ("digits numpy:ones --args=one.npz", "numpy:ones: TypeError: "),
        ("digits json:loads --args=one.npz", "json:loads: TypeError: the JSON"),
        ("digits math:exp --args=one.npz", "expected a function of arrays that JAX"),
        ("explain {one}", "arguments are required: --a, --b"),
        ("explain {one} --a=a.npz --b=a.npz", "the 1 arrays"),
        ("coverage {one} --failure=0.1", "coverage takes --args, --json, --noise"),
        ("devices {one} --mesh=data", "--mesh=data: expected sizes"),
        ("devices {one} --mesh=data=2;data=3 --specs=data", "sizes of axes, each once"),
        ("devices {one} --mesh=data=2 --specs=data --draws=1", "draws=1: expected"),
        ("training {one}", "expected a function that gives (step, state, batches)"),
        ("training {one} --losses=x", "(step, state, batches), as noise.training"),
        ("curves --a=one.npz", "curves: expected --a and --b"),
        ("curves --a=one.npz --b=a.npz", "--b=a.npz: 2 arrays: expected one"),
        ("curves --a=one.npz --b=one.npz --margin=2", "margin=2.0: expected a number"),
        ("localize {one} --draws=0", "--draws=0: expected a whole number"),
        ("digits {one} --seed=99999999999999999999", "--seed=99999"),
        ("digits {one} --loop_limit=0", "--loop_limit=0: expected a whole number"),
        ("training {}:both --args=one.npz", "takes them, not tuple of 2"),
        ("curves {}:task --args=one.npz", "of curves (a, b), not tuple of 3"),
        ("explain {one} --a=one.npz --b=one.npz --noise=ulp", "ulp: explain takes"),
        ("compare_layers {one} --reference=one.npz", "no name in common: here y"),
        ("compare_layers {one} --reference=sum.npz --names=y", "--names=y: expected"),
        ("compare_layers {one} --reference=sum.npz --names=q=z", "nearest is 'y'"),
        ("compare_layers {one} --reference=no.npz", "expected a file of arrays"),
        ("compare_logits {one} --a=a.npz --b=a.npz", "the 1 arrays"),
        ("first_difference {one} --recording=one.npz", "one.npz: expected a recording"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, capsys, command, message):
    try:
        status = main(
            command.format(folder, one=f"{folder}:named --args=one.npz").split(" ")
        )
    except SystemExit as stopped:
        status = stopped.code
    out, error = capsys.readouterr()
    assert (status, out) == (2, "")
    assert message in error
    assert stat.S_ISFIFO(os.stat("pipe.npz").st_mode)  # Nothing took its place.
    (line,) = [text for text in error.splitlines() if not text.startswith("what a mod")]
    assert line.startswith("python -m prednet_jax.noise")


def test_an_error_inside_the_function_shows_the_users_lines(folder, capsys):
    np.savez("square.npz", np.ones((3, 3)), np.ones((4, 4)))
    assert main(["coverage", f"{folder}:loss", "--args=square.npz"]) == 1
    error = capsys.readouterr().err
    assert "dot_general" in error
    assert f"{folder}.py" in error
    assert "prednet_jax" not in error


@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("frobnicate", 2)])
def test_help_and_errors_name_every_command(capsys, argument, status):
    with pytest.raises(SystemExit) as caught:
        main([argument, "a:b"])
    assert caught.value.code == status
    out, error = capsys.readouterr()
    assert all(name in (error if status else out) for name in COMMANDS)
    assert error.count("\n") == (status > 0)
