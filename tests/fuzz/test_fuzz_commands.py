"""Whole commands with broken flags and files: status 2, one line, nothing written.

FUZZ_COMMANDS=N tries N of them (`make fuzz`).
"""

import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMANDS = int(os.environ.get("FUZZ_COMMANDS", "0"))
GOLDEN = ROOT / "tests" / "golden" / "chainer_tiny" / "initial.model.npz"

# Each is wrong whatever stands beside it.
WRONG = (
    *("--channels=3,x", "--channels=", "--channels=0", "--channels=3,-4", "--height=0"),
    *("--height=7", "--width=1e3", "--width=nan", "--variant=other", "--window=1"),
    *("--updates=0", "--updates=-1", "--updates=x", "--seed=-1", "--noise=gausian"),
    *(
        "--noise=gaussian:scale=-1",
        "--noise=ulp:max_ulps=0",
        "--noise=ulp+",
        "--nosuch",
    ),
    *("--data=/dev/zero", "--data=nowhere", "--data=~nobody_here/x.txt", "--data="),
    *("--crop=middle", "--offset=1", "--offset=a,b", "--pixel_max=0", "--r_filters=2"),
    *("--precision=half", "--targets=maybe", "--convolution=other", "--model=no:where"),
    *("--init_weights=nowhere", "--init_weights=/dev/zero", "--init_weights=."),
    *("--batch=0", "--draw=-1", "--checkpoint_every=-1", "--examples=-1", "stray"),
    *("--replicas=-1", "--seeds=1,b", "--layer_weights=a", "--objective=best"),
)


def broken_file(random_, folder):
    """A weight file, a list or an archive with something wrong in it."""
    content = bytearray(GOLDEN.read_bytes())
    kind = random_.choice(["cut", "flipped", "list", "text", "npz"])
    path = folder / {"list": "a.txt", "npz": "a.npz"}.get(kind, "a.model")
    if kind == "cut":
        content = content[: random_.randrange(len(content))]
    elif kind == "flipped":
        # In the directory at the end, which every reader needs.
        content[-random_.randrange(1, 22)] ^= 0xFF
    elif kind in ("list", "text"):
        content = bytes(random_.randrange(256) for _ in range(40))
    path.write_bytes(content)
    return f"--{'data' if kind in ('list', 'npz') else 'init_weights'}={path}"


def test_broken_commands(forked, tmp_path):
    random_ = random.Random(0 if not COMMANDS else None)
    for number in range(COMMANDS or 6):
        flags = random_.sample(WRONG, random_.randrange(1, 4))
        if random_.random() < 0.5:
            flags = [broken_file(random_, tmp_path), "--channels=3,4", "--height=8"]
        workdir = tmp_path / f"run_{number}"
        done = forked("train.py", f"--workdir={workdir}", "--updates=1", *flags)
        told = done.stderr.strip().splitlines()
        assert done.returncode == 2, (flags, done.stderr)
        assert len(told) == 1, (flags, done.stderr)
        assert "Traceback" not in done.stderr
        assert not workdir.exists(), flags


def test_a_fault_of_the_program_keeps_its_traceback(tmp_path):
    """No error is hidden: what is not the user's mistake ends with status 1."""
    code = (
        "import sys, runpy; sys.path.insert(0, sys.argv[1]); import _cli\n"
        "def main(argv): raise KeyError('a fault')\n"
        "sys.argv = ['x.py']; _cli.run(main)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "experiments")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "KeyError: 'a fault'" in done.stderr
