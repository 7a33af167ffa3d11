"""What summaries cost in memory, with the real model: by the plug-in's count, and by the system's."""

import pytest

import steps
from session import Session

MEBIBYTE = 1 << 20
BESIDE_SUMMARIES = 2 * MEBIBYTE  # plans, marks and work space of 30 layers


def resident_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Rss:"))


def growth_in_first_step(state, cache, warm_up, token, start):
    """By how many bytes the process grows when a cache gets its summaries; what a prompt needs is there already."""
    context = steps.make(state, "memory", start + 64)
    context.read(warm_up)
    context.remove()
    context.restore(cache)
    before = resident_bytes()
    context.step(token, start)
    return resident_bytes() - before


@pytest.mark.parametrize(("completion", "most"), [(0.1, 0.135), (0, 0.085)])
def test_summaries_are_a_small_share_of_the_cache(plugin, prose, completion, most):
    with Session(plugin, {"report": 0, "completion": completion}) as session:
        grown, counted = session.run(
            steps.counted, growth_in_first_step, prose.cache, prose.tokens[:512], prose.tokens[prose.start], prose.start
        )
    pages = prose.start // 16
    assert counted["cache_bytes"] == pages * 30 * 2 * 16 * 3 * 64 * 2
    assert 0.8 * most < counted["summary_bytes"] / counted["cache_bytes"] <= most
    assert 0.9 * counted["summary_bytes"] < grown < counted["summary_bytes"] + BESIDE_SUMMARIES
