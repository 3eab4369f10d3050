"""Imports go down only, absl stays in experiments/, JAX internals in noise/."""

import ast
import sys

from tests.processes import ROOT, python

PACKAGE = ROOT / "prednet_jax"

# Layer of each module: a module imports from lower layers and from its own folder.
LAYERS = [
    {"noise"},
    {"errors"},
    {"files"},
    {"config", "optimizers", "records"},
    {"process"},
    {"models", "data", "curvature", "statistics"},
    {"objectives", "pytest_plugin"},
    {"tasks", "report"},
    {"training"},
    {"saddles"},
    {"weights"},
    {"runs"},
    {"__init__"},
]
LAYER = {name: i for i, names in enumerate(LAYERS) for name in names}
# What report may see: it reads records and never runs a model.
REPORT_SEES = {"report", "records", "errors", "files"}
# The modules of noise/ that may touch what is internal to JAX.
INTERNAL = {"compat", "control_flow", "logical_mesh", "registry", "worker"}
DATA_LIBRARIES = (
    *("tensorflow_datasets", "tensorflow", "av", "skimage", "sklearn", "PIL"),
    *("vl_convert", "jinja2", "scipy.stats", "pandas", "statsmodels"),
)


def room(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path):
    """Dotted names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def broken(path, here, stem):
    """What a file of a room imports against the law, each with the reason."""
    found = []
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "absl":
            found.append(f"{name}: absl belongs to experiments/")
        internal = name.startswith(("jax._src", "jax.extend.core"))
        if internal and not (stem in INTERNAL and here == "noise"):
            found.append(f"{name}: JAX internals")
        if parts[0] != "prednet_jax" or len(parts) == 1:
            continue
        there = parts[1]
        if there == here or there not in LAYER:
            continue
        if LAYER[there] >= LAYER[here]:
            found.append(f"{name}: up or sideways")
        if here == "report" and there not in REPORT_SEES:
            found.append(f"{name}: the report reads records")
    return found


def test_core_of_noise_does_not_import_its_questions():
    doors = {"__main__", "_public", "commands"}
    noise = PACKAGE / "noise"
    core = [
        path
        for path in noise.rglob("*.py")
        if noise / "questions" not in path.parents and path.stem not in doors
    ]
    upwards = {
        f"{path.relative_to(noise)} imports {name}"
        for path in core
        for name in imports(path)
        if name.startswith("prednet_jax.noise.questions")
    }
    assert len(core) > 40
    assert upwards == set()


def test_law():
    files = sorted(PACKAGE.rglob("*.py"))
    found = {str(path): broken(path, room(path), path.stem) for path in files}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}
    assert {room(path) for path in files} == set(LAYER)


def test_noise_stands_alone():
    known = {"jax", "numpy", "scipy", *sys.stdlib_module_names}
    for path in sorted((PACKAGE / "noise").rglob("*.py")):
        for name in imports(path):
            if name.startswith("prednet_jax"):
                assert name.startswith("prednet_jax.noise"), (path, name)
            else:
                assert name.split(".")[0] in known, (path, name)


def loaded_after(statement):
    """What is in sys.modules of a fresh process after one statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    return set(python("-c", code).stdout.split())


def test_noise_loads_jax_and_numpy_alone():
    """Nor does the package, which is imported with it."""
    bare = loaded_after("import jax, jax.numpy, jax.extend, numpy")
    here = loaded_after("import prednet_jax.noise; prednet_jax.noise.inject")
    heavy = ["flax", "optax", "chex", "orbax", "h5py", "matfree", "absl", "scipy"]
    assert not (here - bare) & {*heavy, *DATA_LIBRARIES}


def test_checks_of_arguments_load_no_jax():
    assert "jax" not in loaded_after("import prednet_jax.errors, prednet_jax.records")


def test_experiments_holds_scripts_only():
    """A module without a main would take any flag in silence."""
    for path in sorted((ROOT / "experiments").glob("*.py")):
        runs = '\nif __name__ == "__main__":\n' in path.read_text()
        assert runs != path.name.startswith("_"), path


def test_nothing_imports_the_study():
    """It is finished, imports the package, and can go without a trace."""
    files = [
        p
        for room in ("prednet_jax", "experiments", "benchmarks")
        for p in (ROOT / room).rglob("*.py")
    ]
    assert len(files) > 100
    found = {
        str(path): name
        for path in files
        for name in imports(path)
        if name.split(".")[0] == "study"
    }
    assert found == {}
