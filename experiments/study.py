r"""Runs the long trainings of the study, seed by seed, until all are recorded.

    python experiments/study.py --part=C

writes results/study/C/seed_N.csv (curves) and seed_N.json (endpoints, distances,
fingerprints) for each seed of the part. What has a record is not run again, so after an
interruption the same command continues. Several processes share the seeds by
--shard=0/2 and --shard=1/2. docs/study/plan.md says what is run and why.

    python experiments/study.py --part=C --seeds=8300 --workdir=runs/again \
      --compare_with=results/study

makes one seed again and says which of its runs have the published bits.
"""

import time
from pathlib import Path

import _cli
import _flags
from absl import flags

from prednet_jax import errors, process, records
from prednet_jax.studies import parts, seed_records

FLAGS = flags.FLAGS
flags.DEFINE_enum("part", None, list(parts.PARTS), "Which part.", required=True)
flags.DEFINE_string("workdir", "results/study", "Where to write.")
flags.DEFINE_string("shard", "0/1", "I/N: every Nth seed, from the Ith.")
flags.DEFINE_list("seeds", None, "Some seeds of the part only.")
flags.DEFINE_string(
    "compare_with", None, "Published records, beside which each run is shown."
)


def main() -> None:
    """Checks the flags, then runs the seeds that are left."""
    part = parts.PARTS[FLAGS.part]
    try:
        first, step = map(int, FLAGS.shard.split("/"))
        errors.whole("shard", first, 0, step - 1)
    except ValueError:
        raise errors.UserError(
            f"--shard={FLAGS.shard}: expected I/N with I below N"
        ) from None
    wanted = _flags.integers("seeds") or tuple(part.seeds)
    for seed in wanted:
        errors.one_of("--seeds", seed, tuple(part.seeds))
    process.prepare(threads=parts.THREADS, first=first, cache=True)
    process.set_precision("float32")
    folder = Path(FLAGS.workdir) / part.name
    mine = wanted[first::step]
    left = [seed for seed in mine if seed not in seed_records.finished(part, folder)]
    print(f"part {part.name}: {len(left)} of {len(mine)} seeds to run: {left}")
    published = {}
    if FLAGS.compare_with:
        place = Path(FLAGS.compare_with) / part.name
        published = {s: records.read_json(place / f"seed_{s}.json") for s in mine}
    manifest = _cli.provenance() | {
        "device": process.description(),
        "environment": records.of_numbers(records.environment()),
    }
    for seed in left:
        started = time.perf_counter()
        seed_records.follow_seed(part, seed, folder, manifest)
        minutes = (time.perf_counter() - started) / 60
        print(f"{folder}/seed_{seed}.json: {minutes:.1f} minutes", flush=True)
    for seed, old in published.items():
        compare(records.read_json(folder / f"seed_{seed}.json"), old)


def compare(again: dict, published: dict) -> None:
    """Prints each run of a seed beside the published one."""
    for new, old in zip(again["runs"], published["runs"], strict=True):
        same = new["final_params_sha256"] == old["final_params_sha256"]
        losses = (run.get("last_frame_loss") for run in (new, old))
        finding = "same bits" if same else "loss {}, published {}".format(*losses)
        print(f"seed {again['seed']}, {new['arm']} {new['draw']}: {finding}")


if __name__ == "__main__":
    _cli.run(main)
