"""`train.py --replicas=N` and `--batch=B`: many seeds or streams in one program."""

import dataclasses
import time
from pathlib import Path

import common
from absl import flags

FLAGS = flags.FLAGS


def run(make_job) -> None:
    """Trains all replicas; each process writes the runs of those it holds.

    Args:
        make_job: makes what all seeds share, once devices and processes are set.
    """
    count = _check()
    _devices(count)
    job = make_job()
    import jax

    from prednet_jax import data
    from prednet_jax.training import replicas
    from prednet_jax.training.layout import layout

    place = layout(count, FLAGS.batch)
    mode = replicas.resolve_mode(FLAGS.replica_mode, jax.default_backend())
    job.config = replicas.resolve_config(job.config, mode)
    prepared = {}
    for n in place.local:
        source, _, weights = job.prepare(FLAGS.seed + n)
        sources = data.streams(source, FLAGS.batch)
        prepared[n] = source, sources, job.schedule(sources[0]), weights
    if FLAGS.resume:
        _align([_folder(n) for n in place.local])
    runs, opened = {}, {}
    info = {
        "replicas": count,
        "batch": FLAGS.batch,
        "replica_mode": mode,
        "devices": place.mesh.size,
        "processes": jax.process_count(),
    }
    for n, (_, sources, schedule, weights) in prepared.items():
        seed = FLAGS.seed + n
        state = job.initial_state(seed, weights)
        if place.written(n):
            manifest = job.manifest(seed, sources, schedule, weights) | {"layout": info}
            done, state = job.open_folder(_folder(n), manifest, state)
            opened[n] = manifest, done
        runs[n] = replicas.Run(seed, state, sources, schedule)
    update = replicas.compile_update(
        job.config, job.optimizer, job.method, job.noise, place, mode
    )
    wall, cpu = time.perf_counter(), time.process_time()
    states = _train(update, place, runs, {n: done for n, (_, done) in opened.items()})
    seconds = time.perf_counter() - wall
    parallelism = (time.process_time() - cpu) / seconds
    for n, (manifest, _) in opened.items():
        params = replicas.replica_params(states, n)
        job.finish(_folder(n), manifest, params, prepared[n][0], seconds, parallelism)
    print(
        f"{FLAGS.workdir}: {len(opened)} x {FLAGS.updates} updates in {seconds:.1f} s "
        f"on {place.mesh.size} devices"
    )


def _check() -> int:
    """Refuses flags that do not go together; the number of replicas."""
    if FLAGS.replicas < 0:
        raise ValueError(f"--replicas={FLAGS.replicas}: expected at least 0")
    for name in ("batch", "processes"):
        if getattr(FLAGS, name) < 1:
            raise ValueError(f"--{name}={getattr(FLAGS, name)}: expected at least 1")
    if FLAGS.seeds:
        raise ValueError(
            "--seeds: expected --replicas=N (seeds --seed, --seed + 1, ...) or --seeds "
            "without --batch, not both"
        )
    if FLAGS.devices < 0:
        raise ValueError(f"--devices={FLAGS.devices}: expected at least 0")
    if FLAGS.processes > 1 and not FLAGS.coordinator:
        raise ValueError(f"--processes={FLAGS.processes}: expected --coordinator too")
    if FLAGS.processes > 1 and (FLAGS.checkpoint_every or FLAGS.resume):
        raise ValueError(
            "--checkpoint_every and --resume: expected one process "
            f"(--processes={FLAGS.processes})"
        )
    return max(1, FLAGS.replicas)


def _devices(count: int) -> None:
    """Splits the CPU and joins the other processes, before a backend starts."""
    from prednet_jax import backends
    from prednet_jax.training.layout import most_devices

    if FLAGS.coordinator:
        backends.join_processes(FLAGS.coordinator, FLAGS.processes, FLAGS.process)
    devices = FLAGS.devices or most_devices(
        count, FLAGS.batch, backends.available_threads(), FLAGS.processes
    )
    backends.split_cpu(devices)


def _align(folders: list[Path]) -> None:
    """Drops checkpoints that not all replicas have; refuses a run that is complete.

    An interruption between the saves of one update leaves some ahead of the others.
    """
    from prednet_jax.training import checkpoints

    common_updates = set.intersection(*(set(checkpoints.updates(f)) for f in folders))
    last = max(common_updates, default=0)
    if last >= FLAGS.updates:
        raise ValueError(
            f"--updates={FLAGS.updates}: {FLAGS.workdir} has made them all; expected "
            "more to go on"
        )
    for folder in folders:
        checkpoints.drop_after(folder, last)


def _folder(replica: int) -> Path:
    """As --seeds names them; a batch alone is one run."""
    folder = Path(FLAGS.workdir)
    return folder / f"seed_{FLAGS.seed + replica}" if FLAGS.replicas else folder


def _train(update, place, runs: dict, done: dict[int, int]) -> object:
    """Trains to the end, writing metrics and checkpoints; the states at the end."""
    from prednet_jax import records
    from prednet_jax.training import checkpoints, replicas

    writers = {n: records.MetricsWriter(_folder(n), keep=k) for n, k in done.items()}
    start = max(done.values(), default=0)
    name = f"{FLAGS.model} x {len(runs)}"
    bar = common.progress(name, FLAGS.updates, start, FLAGS.progress)
    states = None
    try:
        steps = common.profiled(replicas.train(update, place, runs), FLAGS.profile)
        for states, lines in steps:
            for n, writer in writers.items():
                writer.write(**dataclasses.asdict(lines[n]))
            made, every = lines[next(iter(lines))].update, FLAGS.checkpoint_every
            if every and made % every == 0:
                for n in writers:
                    checkpoints.save(_folder(n), replicas.replica_state(states, n))
            bar.update()
    finally:
        bar.close()
        for writer in writers.values():
            writer.close()
    return states
