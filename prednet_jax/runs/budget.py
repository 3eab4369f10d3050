"""Chooses how much of the study a comparison repeats in a given number of minutes.

A size of the comparison is its number of seeds and of updates (`Size`). The effects it
can detect are known from the records of the study before it is run (`published`). Its
duration follows from a short measurement of this machine: the two programs that every
size needs are compiled, for use in the comparison too, and make a few updates, both at
the same time.

    python benchmarks/compare_costs.py

measured `COSTS`, on one processor of an AMD EPYC, where an update of the reference
program took 0.21 s.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from prednet_jax import files, records
from prednet_jax.runs import published

#: Seconds to compile, and seconds of an update, of each training.
COSTS: Mapping[str, tuple[float, float]] = {
    "float32": (9.9, 0.0143),
    "reduction_order": (15.5, 0.0215),
    "stale_targets": (7.7, 0.0144),
    "convolution_im2col": (10.0, 0.0161),
    "saddle float32": (8.2, 0.0103),
    "saddle tile": (13.9, 0.0157),
    "saddle run": (17.0, 0.0154),
    "autoencoder": (1.9, 0.0020),
}
#: Seconds to start a process, and to stop what still runs at the end of the time, judge
#: the runs and draw the report.
STARTING, CLOSING = 4.0, 20.0
#: Updates of the measurement, and the number of last updates that are timed. float32
#: is still updated while reduction_order compiles: processors that share a core are
#: slower together than alone.
MEASURED: Mapping[str, int] = {"float32": 400, "reduction_order": 40}
TIMED_UPDATES = 39
#: What may be given up, in this order, where the time does not suffice for all.
GIVEN_UP: Mapping[str, str] = {
    "saddle_run": "a training from an exact saddle with one order for the whole run",
    "saddle": "the trainings from an exact saddle",
    "convolution_im2col": "a second fixed order of sums to compare with",
    "autoencoder": "the autoencoder",
}
#: Giving up a part has to raise the chance of an answer by at least this much.
WORTH_OF_A_PART = 0.1
#: Chances that differ by less than this count as equal: then more training decides.
EQUAL_CHANCE = 0.05
#: Share of the time that a plan may fill; the rest absorbs what was not foreseen.
FILLED = 0.92
MOST_SEEDS = 40
#: Where the plan of a comparison is kept until its verdict.
PLAN = "plan.json"
_DRAWS, _IMAGE_UPDATES = 2, 500


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The durations on this machine, divided by durations on the machine of `COSTS`.

    Attributes:
        compiling: factor of the seconds to compile and to start a process.
        updates: factor of the seconds of an update.
    """

    compiling: float = 1.0
    updates: float = 1.0

    @classmethod
    def measured(cls, seconds: Mapping[str, tuple[float, float]]) -> "Speed":
        """Returns the speed from seconds to compile and of an update, by training."""
        compiling, updates = zip(
            *(
                (mine[0] / COSTS[name][0], mine[1] / COSTS[name][1])
                for name, mine in seconds.items()
            ),
            strict=True,
        )
        return cls(compiling=max(compiling), updates=sum(updates) / len(updates))

    @property
    def closing(self) -> float:
        """Seconds to judge the runs and to draw the report."""
        return CLOSING * self.updates


@dataclass(frozen=True, kw_only=True)
class Size:
    """A size of the comparison: its seeds, its updates, and parts that are given up."""

    seeds: int
    updates: int
    without: tuple[str, ...] = ()

    @property
    def saddle_updates(self) -> int:
        """Returns the updates of the runs from a saddle; by then twins have left it."""
        long = self.updates >= published.UPDATES[-1]
        return published.SADDLE_UPDATES[-1 if long else -2]

    @property
    def saddle_arms(self) -> tuple[str, ...]:
        """Returns the arms of the runs from a saddle.

        The result is empty if the saddle is given up.
        """
        if "saddle" in self.without:
            return ()
        arms = published.SADDLE_ARMS
        return arms[:2] if "saddle_run" in self.without else arms

    @property
    def given_up(self) -> tuple[str, ...]:
        """Returns in words what is left out.

        The trainings from a saddle include the one with a single order.
        """
        names = set(self.without)
        if "saddle" in names:
            names.discard("saddle_run")
        return tuple(text for name, text in GIVEN_UP.items() if name in names)

    @property
    def chance(self) -> float:
        """Returns the chance that its random orders separate from the fixed ones."""
        return published.load().by_updates[self.updates].chance_to_separate(self.seeds)

    def processes(self, speed: Speed) -> list[float]:
        """Returns the seconds of each process, in the order in which they start."""
        total = self.seeds * self.updates

        def process(name: str, updates: float, *, compiled: bool = False) -> float:
            compiling, update = COSTS[name]
            compiling *= 0 if compiled else speed.compiling
            starting = STARTING * speed.updates
            return starting + compiling + updates * update * speed.updates

        seconds = [process("float32", total, compiled=True)]
        # The measurement has compiled these two.
        seconds += [process("reduction_order", total, compiled=True)] * _DRAWS
        seconds.append(process("stale_targets", total))
        if "convolution_im2col" not in self.without:
            seconds.append(process("convolution_im2col", total))
        seconds += [
            process(f"saddle {arm}", self.saddle_updates) for arm in self.saddle_arms
        ]
        if "autoencoder" not in self.without:
            each = process("autoencoder", self.seeds * _IMAGE_UPDATES)
            seconds += [each] * (1 + _DRAWS)
        return seconds

    def seconds(self, speed: Speed, processes: int) -> float:
        """Returns the wall seconds of the comparison on `processes` processors."""
        return makespan(self.processes(speed), processes) + speed.closing


def makespan(works: Iterable[float], processes: int) -> float:
    """Returns when the last work ends; each starts when a processor is free."""
    free = [0.0] * processes
    for work in works:
        heapq.heappush(free, heapq.heappop(free) + work)
    return max(free)


def all_sizes() -> Iterator[Size]:
    """Yields every size, with all parts first."""
    parts = tuple(GIVEN_UP)
    for count in range(len(parts) + 1):
        for updates in published.UPDATES:
            for seeds in range(1, MOST_SEEDS + 1):
                yield Size(seeds=seeds, updates=updates, without=parts[:count])


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The size that was chosen, and its duration.

    Attributes:
        size: the size.
        seconds: its expected wall seconds.
        fits: whether it is expected to end in time; the smallest size may not.
    """

    size: Size
    seconds: float
    fits: bool


def choose(seconds: float, speed: Speed, processes: int) -> Choice:
    """Chooses the size for a number of wall seconds.

    Among the sizes that fit, it chooses the one whose random orders most likely
    separate from the fixed ones, since otherwise nothing can be concluded about noise.
    A part that is given up counts as `WORTH_OF_A_PART`. Among nearly equal sizes it
    takes the one with the most training.
    """
    sizes = {size: size.seconds(speed, processes) for size in all_sizes()}
    fitting = [size for size, cost in sizes.items() if cost <= FILLED * seconds]
    if not fitting:
        least = min(sizes, key=lambda size: sizes[size])
        return Choice(size=least, seconds=sizes[least], fits=False)
    worth = {r: r.chance - WORTH_OF_A_PART * len(r.without) for r in fitting}
    best = max(worth.values())
    equal = [size for size in fitting if worth[size] > best - EQUAL_CHANCE]
    chosen = max(equal, key=lambda r: (-len(r.without), r.seeds * r.updates, r.updates))
    return Choice(size=chosen, seconds=sizes[chosen], fits=True)


@dataclass(frozen=True)
class Plan:
    """The size of a comparison; kept on the disk until there is a verdict.

    Attributes:
        first_seed: the first root seed.
        size: seeds, updates, and the parts that are given up.
        minutes: duration it was chosen for, or None if the flags decided.
        closing: seconds that judging the runs and the report take.
    """

    first_seed: int
    size: Size
    minutes: float | None = None
    closing: float = 0.0

    def write(self, root: Path) -> None:
        """Keeps the plan in the directory of the comparison."""
        records.write_json(root / PLAN, asdict(self))

    @classmethod
    def read(cls, root: Path) -> "Plan | None":
        """Reads the plan of an interrupted comparison, or None without a plan."""
        if not (root / PLAN).is_file():
            return None
        stored = records.read_json(root / PLAN)
        problem = f"{root / PLAN}: not the plan of a comparison"
        wanted = "; expected what compare_backends.py wrote: remove it to begin anew"
        with files.broken_as(problem, wanted, files.FileError, (AttributeError,)):
            # A plan of an earlier version has the name rung.
            size = stored.pop("size" if "size" in stored else "rung")
            without = tuple(size.pop("without"))
            return cls(**stored, size=Size(**size, without=without))


def describe_size(first: int, size: Size) -> str:
    """Returns the seeds, from the first one on, and updates of a size, in words."""
    last = first + size.seeds - 1
    seeds = f"seed {first}" if size.seeds == 1 else f"seeds {first} to {last}"
    return f"{seeds}, {size.updates} updates each"


def describe_choice(choice: Choice, speed: Speed) -> str:
    """Describes the choice and its reason, and the parts that are given up."""
    size = choice.size
    effect, higher, total = published.load().by_updates[size.updates].stale_effect()
    text = (
        f"An update takes {1e3 * COSTS['float32'][1] * speed.updates:.0f} ms on this "
        f"machine. Chosen: {counts(size)}, about {choice.seconds / 60:.1f} minutes "
        f"more. By the records of the study, such runs have a chance of "
        f"{size.chance:.0%} to show what noise does: in the others, random orders of "
        "sums have not yet moved the weights apart. The mistake of the article's "
        f"script had raised the loss in {higher} of {total} seeds by then "
        f"({effect:+.0%})."
    )
    if size.without:
        parts = "; ".join(size.given_up)
        text += f" Left out for lack of time: {parts}. Give more --minutes for them."
    if not choice.fits:
        text += " This is the smallest size, and it may take longer than --minutes."
    return text


def counts(size: Size) -> str:
    """Returns how many seeds and updates a size has, in words."""
    return f"{size.seeds} seed{'s' * (size.seeds > 1)} of {size.updates} updates"
