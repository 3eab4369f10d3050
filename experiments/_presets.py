"""Named settings of train.py: values for flags that are not given.

article        Sinapayen & Noda / Watanabe's PredNet as arXiv 2109.01451 trained it:
               160x120, window 20, 250 updates, Chainer's leak between windows.
               Frames are the embedded walk unless --data names others (FPSI).
lotter_kitti   Lotter et al. 2017, coxlab/prednet's kitti_train.py: 160x128, ten
               frames a sequence, 150 epochs of 125 updates; one sequence an update
               (--batch=4 for theirs) on --data
quick          a small PredNet trained on random windows of many embedded walks, which
               then predicts walks that it has not seen (docs/training.md)
"""

from typing import Any

from absl import flags

FLAGS = flags.FLAGS
_PUBLISHED = {"channels": ["3", "48", "96", "192"], "width": 160}
PRESETS: dict[str, dict[str, Any]] = {
    "article": _PUBLISHED
    | {"variant": "watanabe", "height": 120, "window": 20, "updates": 250}
    | {"truncation_leak": True},
    "lotter_kitti": _PUBLISHED
    | {"variant": "lotter", "height": 128, "window": 10, "updates": 18_750},
    "quick": {"variant": "watanabe", "channels": ["3", "24", "48"]}
    | {"height": 24, "width": 32, "window": 20, "updates": 1000}
    | {"sampling": "windows", "batch": 8, "validate_every": 250}
    | {"learning_rate": 2e-3, "schedule": "cosine", "clip_gradient": 1.0},
}


def define() -> None:
    """Declares --preset."""
    flags.DEFINE_enum(
        "preset",
        None,
        list(PRESETS),
        "Values for flags that are not given: article, as arXiv 2109.01451; "
        "lotter_kitti, as Lotter et al. 2017; quick, small, ten minutes on a CPU.",
    )


def apply() -> None:
    """Sets the flags of --preset that were not given."""
    for name, value in PRESETS.get(FLAGS.preset, {}).items():
        if not FLAGS[name].present:
            FLAGS[name].value = value
