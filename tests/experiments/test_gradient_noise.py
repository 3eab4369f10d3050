"""gradient_noise.py as a user runs it: in a process of its own, tiny."""

import json

import pytest

TINY = ("--model=autoencoder", "--hidden=4", "--updates=1,3")


def test_the_spread_is_the_scale_of_noise_on_the_gradient(forked, tmp_path):
    """`gradient_gaussian:scale=s` has spread s by definition: what is measured is it.

    Some 7000 elements and 15 degrees of freedom each: the estimate is good to 1 %.
    """
    done = forked(
        "gradient_noise.py",
        *TINY,
        "--noise=gradient_gaussian:scale=1e-2",
        "--noise=reduction_order:granularity=element",
        "--noise=reduction_order:partials=4+gradient_gaussian:scale=1e-2",
        f"--workdir={tmp_path}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "gradient_noise.json").read_text())
    assert [row["update"] for row in result["rows"]] == [1, 1, 1, 3, 3, 3]
    for added, order, both in (result["rows"][:3], result["rows"][3:]):
        assert added["spread"] == pytest.approx(1e-2, rel=0.02)
        # The mean of 16 is a quarter of that away.
        assert added["shift"] == pytest.approx(2.5e-3, rel=0.1)
        assert added["v_c"] > 0.9
        assert order["spec"].endswith("shortest=256")
        assert 1e-9 < order["spread"] < 1e-5
        assert 0 < order["v_c"] < 1
        # Independent noises, one much larger.
        assert both["spread"] == pytest.approx(1e-2, rel=0.02)
    assert "reduction_order:granularity=element: spread" in done.stdout
    for flag in ("--model=autoencoder", "--hidden=4", "--updates=1,3"):
        assert flag in result["command"]
    assert result["command"].count("--noise=") == 3


def test_help_lists_the_flags_of_the_network(forked):
    done = forked("gradient_noise.py", "--help")
    assert done.returncode == 0
    for flag in ("noise", "keys", "model", "channels", "data", "workdir"):
        assert f"--{flag}:" in done.stdout or f"--[no]{flag}:" in done.stdout, flag


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--updates=0", "--updates=0: expected whole numbers of at least 1"),
        ("--updates=one", "one"),
        ("--keys=1", "--keys=1: expected a whole number, at least 2"),
        ("--noise=none", "--noise=none: expected noise of a computation"),
        ("--noise=bit_flip", "--noise=bit_flip: expected noise of a computation"),
        ("--noise=thermal", "thermal"),
        ("--data=/nowhere.npz", "/nowhere.npz"),
    ],
)
def test_bad_flags_end_in_one_line(refused, tmp_path, flag, message):
    out = f"--workdir={tmp_path / 'out'}"
    refused(message, "gradient_noise.py", *TINY, flag, out)
    assert not (tmp_path / "out").exists()
