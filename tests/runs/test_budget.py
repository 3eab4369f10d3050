import dataclasses

import pytest

from prednet_jax.runs import budget, published
from prednet_jax.runs.budget import Size, Speed


def test_a_list_of_works_ends_when_the_last_one_does():
    assert budget.makespan([4, 3, 2, 1], 2) == 5
    assert budget.makespan([4, 3, 2, 1], 1) == 10


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.4, 2.0, 3.0])
def test_what_is_chosen_fits_and_shows_most(factor):
    speed = Speed(compiling=factor, updates=factor)
    for seconds in (120, 300, 900):
        choice = budget.choose(seconds, speed, 2)
        assert choice.seconds == choice.size.seconds(speed, 2)
        if not choice.fits:
            least = min(size.seconds(speed, 2) for size in budget.all_sizes())
            assert choice.seconds == least > budget.FILLED * seconds
            continue
        assert choice.seconds <= budget.FILLED * seconds
        for size in budget.all_sizes():
            affordable = size.seconds(speed, 2) <= budget.FILLED * seconds
            if affordable and len(size.without) <= len(choice.size.without):
                assert size.chance <= choice.size.chance + budget.EQUAL_CHANCE


@pytest.mark.parametrize(
    ("slower", "surprise"),
    [
        (1.0, 1.0),
        (1.5, 1.0),
        (2.0, 1.0),
        (3.0, 1.0),
        (1.0, 1.3),
        (1.5, 1.3),
        (2.0, 1.3),
    ],
)
def test_a_slow_machine_gets_a_smaller_size_and_ends_in_time(slower, surprise):
    """From nothing to claims in 300 s, where runs then take `surprise` as long."""
    speed = Speed(compiling=slower, updates=slower)
    measured = max(
        budget.STARTING + compiling + budget.MEASURED[name] * update
        for name, (compiling, update) in budget.COSTS.items()
        if name in budget.MEASURED
    )
    begun = slower * measured
    size = budget.choose(300 - begun, speed, 2).size
    ends = begun + budget.makespan(
        [surprise * seconds for seconds in size.processes(speed)], 2
    )
    # At the deadline the runs that every claim needs have at least the smallest size.
    smallest = dataclasses.replace(size, seeds=1, updates=1000)
    needed = [surprise * seconds for seconds in smallest.processes(speed)[:4]]
    deadline = 300 - speed.closing
    assert begun + budget.makespan(needed, 2) < deadline
    if surprise == 1:
        assert ends < deadline
    fast = budget.choose(300 - measured, Speed(), 2).size
    if slower > 1:
        assert sum(size.processes(Speed())) < sum(fast.processes(Speed()))


def test_more_minutes_give_more_evidence_and_nothing_is_given_up():
    speed = Speed()
    short, five, fifteen = (
        budget.choose(60 * minutes - 30, speed, 2).size for minutes in (2, 5, 15)
    )
    assert short.without
    assert short.seeds * short.updates < five.seeds * five.updates
    assert five.updates >= 2000  # one seed of 2000 shows more than two of 1000
    # The comparison before there was a budget.
    assert fifteen.without == ()
    assert fifteen.seeds * fifteen.updates >= 3 * 3000
    assert fifteen.chance > 0.9


def test_parts_are_given_up_in_order_and_cost_nothing():
    speed = Speed()
    whole = Size(seeds=1, updates=2000)
    costs = [
        dataclasses.replace(whole, without=tuple(budget.GIVEN_UP)[:count])
        for count in range(len(budget.GIVEN_UP) + 1)
    ]
    seconds = [sum(size.processes(speed)) for size in costs]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == len(seconds)
    assert whole.saddle_arms == published.SADDLE_ARMS
    assert costs[1].saddle_arms == ("float32", "tile")
    assert costs[2].saddle_arms == ()


def test_the_speed_is_that_of_the_measured_programs():
    twice = {
        name: (2 * compiling, 3 * update)
        for name, (compiling, update) in budget.COSTS.items()
        if name in ("float32", "reduction_order")
    }
    assert Speed.measured(twice) == Speed(compiling=2, updates=3)
