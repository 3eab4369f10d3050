import re
import subprocess

import numpy as np
import pytest

from prednet_jax import records
from prednet_jax.errors import UserError
from prednet_jax.records import RecordError
from prednet_jax.runs import store
from tests.processes import ROOT

FACTS = {"updates": 5, "sizes": (3, 4), "source": "a"}


def sealed(folder):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("{}\n")
    store.seal(folder, FACTS, ["metrics.jsonl", "weights.npz"])
    return folder


CHANGED = {
    "altered since (metrics.jsonl)": lambda run: (run / "metrics.jsonl").write_text(""),
    "altered since (weights.npz)": lambda run: (run / "weights.npz").touch(),
    "unfinished": lambda run: (run / store.RECEIPT).unlink(),
}
OTHERS = {
    "with other updates and source": FACTS | {"source": "b", "updates": 6},
    "with other contents": {"updates": 5},
}


@pytest.mark.parametrize("state", [*CHANGED, *OTHERS])
def test_a_directory_counts_only_whole_and_with_the_same_facts(tmp_path, state):
    names = ["metrics.jsonl", "weights.npz"]
    folder = tmp_path / "run"
    backwards = dict(reversed(FACTS.items()))
    assert store.key(FACTS) == store.key(backwards) != store.key({})
    assert store.state(folder, FACTS, names) == "new"
    sealed(folder)
    assert store.state(folder, FACTS, names) == "kept"
    store.verify(folder, FACTS, names)
    CHANGED.get(state, bool)(folder)
    facts = OTHERS.get(state, FACTS)
    assert store.state(folder, facts, names) == state
    with pytest.raises(RecordError, match=re.escape(f"run: {state}; expected")):
        store.verify(folder, facts, names)


def test_arrays_come_back_to_who_made_them_alone(tmp_path):
    path = tmp_path / "new" / "run.npz"
    assert not store.has_arrays(path, FACTS)
    store.write_arrays(path, FACTS, {"a": {"b": np.arange(3)}})
    assert store.has_arrays(path, FACTS)
    np.testing.assert_array_equal(records.read_tree(path)["a"]["b"], np.arange(3))
    with pytest.raises(UserError, match="another source; remove it"):
        store.has_arrays(path, FACTS | {"source": "b"})


ADD = """
import sys
from pathlib import Path
from prednet_jax.runs.store import Table
table = Table(Path(sys.argv[1]), ("seed", "name"), (int, str))
for seed in range(int(sys.argv[2]), int(sys.argv[2]) + 20):
    table.add({"seed": seed, "name": "x" * 1000})
"""


def test_two_processes_add_rows_to_one_table(started, tmp_path):
    table = store.Table(tmp_path, ("seed", "name"), (int, str))
    assert table.done() == set()
    script = tmp_path / "add.py"
    script.write_text(ADD)
    with started(script, tmp_path, 0) as one, started(script, tmp_path, 20) as other:
        assert one.wait().returncode == other.wait().returncode == 0
    assert table.done() == {(seed, "x" * 1000) for seed in range(40)}
    with open(table.path, "a") as file:
        file.write("no number,x\n")
    with pytest.raises(UserError, match="a row without seed, name"):
        table.done()


def test_no_record_says_where_it_was_made():
    """Part A's manifest named the directory of a compilation cache."""
    listing = ["git", "ls-files", "results/*.json"]
    names = subprocess.check_output(listing, cwd=ROOT, text=True).split()
    assert len(names) > 100
    for name in names:
        assert "CACHE_DIR" not in (ROOT / name).read_text(), name
    variables = {"NPROC": "1", "JAX_COMPILATION_CACHE_DIR": "/tmp/x"}
    assert records.of_numbers(variables) == {"NPROC": "1"}
