"""Measures what each training of `make compare` costs.

    python benchmarks/compare_costs.py

Prints processor seconds of compiling and milliseconds of an update, on one processor:
the numbers of `runs.budget.COSTS`, where `autoencoder` stands for two trainings. Both
are also printed divided by the control's. The last row is an update at 64x48 with
windows of 20 frames, by which a reader can compare machines.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator

from prednet_jax import data, noise, process, tasks
from prednet_jax.config import MIDDLE, SMALL, AutoencoderConfig
from prednet_jax.objectives import Method
from prednet_jax.saddles import symmetric
from prednet_jax.training import loop
from prednet_jax.training.trainer import Trainer

IM2COL = dataclasses.replace(SMALL, convolution="im2col")
#: Network, noise and targets of each training.
TRAININGS = {
    "float32": (SMALL, "none", "true"),
    "reduction_order": (SMALL, "reduction_order", "true"),
    "stale_targets": (SMALL, "none", "stale"),
    "convolution_im2col": (IM2COL, "none", "true"),
    "saddle float32": (symmetric.NETWORK, "none", "true"),
    "saddle tile": (symmetric.NETWORK, symmetric.ARMS["tile"], "true"),
    "saddle run": (symmetric.NETWORK, symmetric.ARMS["run"], "true"),
    "autoencoder float32": (AutoencoderConfig(), "none", "true"),
    "autoencoder reduction_order": (AutoencoderConfig(), "reduction_order", "true"),
    "reference": (MIDDLE, "none", "true"),
}


def training(name: str, updates: int) -> Iterator[float]:
    """Trains, and yields the processor seconds so far after each update."""
    network, spec, targets = TRAININGS[name]
    task = tasks.of(network)
    trainer = Trainer(
        task,
        task.optimizer(updates),
        method=Method(targets=targets),
        noise=noise.parse(spec),
    )
    source = data.open_source(task.data, **tasks.frame_size(task), seed=5)
    window = 20 if name == "reference" else 10
    schedule = loop.frame_schedule(task, source, window=window, updates=updates)
    state = trainer.init(loop.initial_params(task, 5))
    for _ in loop.train(trainer, state, source, schedule, seed=5):
        yield time.process_time()


def seconds_of(action: Callable[[], object]) -> float:
    """Returns the processor seconds that an action takes."""
    start = time.process_time()
    action()
    return time.process_time() - start


def main() -> None:
    """Compiles every program, then takes turns between them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="Turns of each training.")
    parser.add_argument("--updates", type=int, default=30, help="Updates of a turn.")
    rounds, updates = vars(parser.parse_args()).values()
    process.prepare(threads=1)
    process.set_precision("float32")
    running = {name: training(name, 1 + rounds * updates) for name in TRAININGS}
    compiled = {
        name: seconds_of(lambda steps=steps: next(steps))
        for name, steps in running.items()
    }
    turns: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, steps in running.items():
            count = max(1, updates // 10) if name == "reference" else updates
            taken = seconds_of(lambda: [next(steps) for _ in range(count)])  # noqa: B023
            turns[name].append(taken / count)
    medians = {name: statistics.median(of) for name, of in turns.items()}
    print(f"{'training':30}{'compile s':>10}{'over':>6}{'update ms':>11}{'over':>6}")
    for name, update in medians.items():
        over = compiled[name] / compiled["float32"], update / medians["float32"]
        print(
            f"{name:30}{compiled[name]:10.1f}{over[0]:6.2f}{1e3 * update:11.2f}"
            f"{over[1]:6.2f}"
        )


if __name__ == "__main__":
    main()
