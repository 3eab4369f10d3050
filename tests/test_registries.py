"""Each entry of a registry is on its pages and among the cases of its tests.

Whoever adds an entry learns here which lines are still missing.
"""

import re

import pytest

from prednet_jax import data, tasks, weights
from prednet_jax.noise import specs, text
from prednet_jax.noise.commands import COMMANDS
from prednet_jax.objectives import OBJECTIVES
from prednet_jax.runs import arms
from tests import test_tasks
from tests.noise import test_noise_command, test_noise_specs
from tests.processes import ROOT
from tests.training import test_golden_losses

_NOISES = [kind.__name__ for kind in text.KINDS.values()]
_SEQUENCES = [name for name, source in data.NAMES.items() if not source.pictures]
# The beginning of a name that has a part of its own, such as threads_<n>.
_ARMS = [name.partition("<")[0] for name in arms.NAMES]
_CONFIGS = [config for _, config in tasks.NAMED.values()]
_ANSWERED = {command.split()[0] for command, _ in test_noise_command.ANSWERS}
_ANSWERED |= {"audit", "tolerances"}  # In test_audit and test_kept.
#: The pages that list every entry of a registry.
PAGES = [
    ("docs/noise/noises.md", [*_NOISES, *specs.FORMATS]),
    ("docs/noise/explain.md", specs.FORMATS),
    ("docs/noise/which_tool.md", COMMANDS),
    ("prednet_jax/noise/README.md", COMMANDS),
    ("study/pages/arms.md", _ARMS),
    ("docs/data.md", data.NAMES),
    ("docs/training.md", _SEQUENCES),
    ("prednet_jax/training/settings.py", data.NAMES),
    ("docs/glossary.md", OBJECTIVES),
    ("docs/models.md", [save.__name__ for save in weights.WRITERS.values()]),
    (
        "experiments/convert_weights.py",
        [suffix for suffix in weights.WRITERS if suffix],
    ),
]


@pytest.mark.parametrize(("page", "names"), PAGES, ids=[page for page, _ in PAGES])
def test_a_page_lists_every_entry(page, names):
    content = (ROOT / page).read_text()
    begin = r"`(weights\.)?" if page.endswith(".md") else r"(?<!\w)"
    assert not [n for n in names if not re.search(begin + re.escape(n), content)]


@pytest.mark.parametrize(
    ("cases", "entries"),
    [
        (map(type, test_noise_specs.SIMPLE), {*text.KINDS.values()} - {specs.Identity}),
        (_ANSWERED, COMMANDS),
        (map(type, test_tasks.CONFIGS), _CONFIGS),
        (
            (type(config) for config, _ in test_golden_losses.NETWORKS.values()),
            _CONFIGS,
        ),
    ],
    ids=["noises", "commands", "networks", "golden losses"],
)
def test_every_entry_has_a_case(cases, entries):
    assert set(entries) <= set(cases)
