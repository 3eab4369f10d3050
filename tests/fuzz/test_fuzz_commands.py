"""Whole commands with broken flags and files: status 2, one line, nothing written.

FUZZ_COMMANDS=N tries N of them (`make fuzz`).
"""

import os
import random
from pathlib import Path

COMMANDS = int(os.environ.get("FUZZ_COMMANDS", "0"))
GOLDEN = Path(__file__).parents[1] / "golden" / "chainer_tiny" / "initial.model.npz"

# Each is wrong whatever stands beside it.
WRONG = (
    *("--channels=3,x", "--channels=", "--channels=0", "--channels=3,-4", "--height=0"),
    *("--height=7", "--width=1e3", "--width=nan", "--variant=other", "--window=1"),
    *("--updates=0", "--updates=-1", "--updates=x", "--seed=-1", "--noise=gausian"),
    *("--noise=gaussian:scale=-1", "--noise=ulp:max_ulps=0", "--noise=ulp+"),
    *("--data=/dev/zero", "--data=nowhere", "--data=~nobody_here/x.txt", "--data="),
    *("--crop=middle", "--offset=1", "--offset=a,b", "--pixel_max=0", "--r_filters=2"),
    *("--precision=half", "--targets=maybe", "--convolution=other", "--model=no:where"),
    *("--init_weights=nowhere", "--init_weights=/dev/zero", "--init_weights=."),
    *("--batch=0", "--draw=-1", "--checkpoint_every=-1", "--examples=-1", "stray"),
    *("--replicas=-1", "--seeds=1,b", "--layer_weights=a", "--objective=best"),
    "--nosuch",
)


def broken_file(random_, folder):
    """A flag with a weight file, a list or an archive that something is wrong in."""
    content = bytearray(GOLDEN.read_bytes())
    name = random_.choice(["cut.model", "flipped.model", "a.model", "a.txt", "a.npz"])
    flag = "init_weights" if name.endswith(".model") else "data"
    if name == "cut.model":
        content = content[: random_.randrange(len(content))]
    elif name == "flipped.model":
        # In the directory at the end, which every reader needs.
        content[-random_.randrange(1, 22)] ^= 0xFF
    else:
        content = random_.randbytes(40)
    (folder / name).write_bytes(content)
    return f"--{flag}={folder / name}"


def test_broken_commands(forked, tmp_path):
    random_ = random.Random(0 if not COMMANDS else None)
    for number in range(COMMANDS or 6):
        flags = random_.sample(WRONG, random_.randrange(1, 4))
        if random_.random() < 0.5:
            flags = [broken_file(random_, tmp_path), "--channels=3,4", "--height=8"]
        workdir = tmp_path / f"run_{number}"
        done = forked("train.py", f"--workdir={workdir}", "--updates=1", *flags)
        assert done.returncode == 2, (flags, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1, (flags, done.stderr)
        assert not workdir.exists(), flags
