"""Every mistake is a ValueError that names the argument, and the interpreter survives it."""

import numpy as np
import pytest
from built_package import locks_cpp
from dlpack_object import CUDA, DlpackObject
from package_data import make_cache, make_plan, make_queries, make_summaries, step

CONFIG = locks_cpp.Config()


class Step:
    """The arguments of a good call of DecodePlan.run, to be spoiled one at a time."""

    def __init__(self):
        rng = np.random.default_rng(41)
        self.cache = make_cache(rng, [2000, 40], block_tokens=32)
        self.memory, self.summaries, _ = make_summaries(self.cache, CONFIG)
        self.plan = make_plan(self.cache, CONFIG, max_requests=2, max_context_tokens=2000)
        queries = make_queries(rng, self.cache)
        self.arguments = {
            "queries": queries,
            "keys": self.cache.keys,
            "values": self.cache.values,
            "summaries": self.summaries,
            "block_tables": self.cache.tables,
            "context_tokens": self.cache.tokens,
            "out": np.empty_like(queries),
        }

    def run(self, **changed):
        return self.plan.run(**{**self.arguments, **changed})


@pytest.fixture(scope="module")
def good():
    made = Step()
    made.run()
    return made


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def spread(array):
    """The same entries, the last axis with gaps."""
    return np.repeat(array, 2, axis=-1)[..., ::2]


SPOILED = {
    "another type": (lambda a: a.astype(np.float64 if a.dtype != np.int32 else np.int64), r"got (float|int)64"),
    "a list": (lambda a: a.tolist(), "got an object of type list without __dlpack__"),
    "None": (lambda a: None, "got None"),
    "an axis less": (lambda a: a[0], r"got \w+ \["),
    "no axes": (lambda a: np.array(0, a.dtype), r"got \w+ \[\]"),
    "an axis more": (lambda a: a[None], r"got \w+ \[1, "),
    "gaps in the last axis": (spread, "the last axis contiguous"),
    "backwards": (lambda a: a[..., ::-1], "the last axis contiguous"),
    "big-endian": (lambda a: a.astype(a.dtype.newbyteorder(">")), "whose __dlpack__ says: "),
    "on a GPU": (
        lambda a: DlpackObject(a, code=0 if a.dtype == np.int32 else 2, device=CUDA),
        "on a device of DLPack type 2",
    ),
    "a null pointer": (lambda a: DlpackObject(a, code=0 if a.dtype == np.int32 else 2, null=True), "at a null pointer"),
    "unaligned": (lambda a: DlpackObject(a, code=0 if a.dtype == np.int32 else 2, byte_offset=1), "at an unaligned address"),
}
ARRAYS = ("queries", "keys", "values", "block_tables", "context_tokens", "out")


@pytest.mark.parametrize("argument", ARRAYS)
@pytest.mark.parametrize("kind", SPOILED)
def test_a_spoiled_array_is_refused_by_name(good, argument, kind):
    spoil, said = SPOILED[kind]
    with pytest.raises(ValueError, match=rf"(?s)^{argument}: expected .*{said}"):
        good.run(**{argument: spoil(good.arguments[argument])})


def changed(array, index, value):
    array = array.copy()
    array[index] = value
    return array


LEAST, MOST = -(2**31), 2**31 - 1
SHAPES_AND_NUMBERS = {
    "fewer heads": ({"queries": lambda a: a[:, :5].copy()}, "^queries: expected .* = "),
    "queries of another head_dim": ({"queries": lambda a: a[..., :63].copy()}, "^queries: "),
    "values of other blocks": ({"values": lambda a: a[:-1]}, "^values: "),
    "keys of other heads": ({"keys": lambda a: a[:, :, :1]}, "^keys: "),
    "half a page a block": ({"keys": lambda a: a[:, :8], "values": lambda a: a[:, :8]}, "^keys: .*multiple of 16"),
    "tokens on top of each other": (
        {"keys": lambda a: np.lib.stride_tricks.as_strided(a, strides=(a.strides[0], 64, *a.strides[2:]))},
        "^keys.token_stride: ",
    ),
    "one table too few": ({"block_tables": lambda a: a[:1]}, "^block_tables: "),
    "short tables": ({"block_tables": lambda a: a[:, :62].copy()}, "^block_tables: expected 63 blocks"),
    "no tables": ({"block_tables": lambda a: a[:, :0]}, "^block_tables: expected 63 blocks"),
    "block -1": (
        {"block_tables": lambda a: changed(a, (1, 1), -1)},
        r"^block_tables\[1, 1\]: expected a block number below",
    ),
    "least block": ({"block_tables": lambda a: changed(a, (0, 0), LEAST)}, r"^block_tables\[0, 0\]: "),
    "most block": ({"block_tables": lambda a: changed(a, (0, 62), MOST)}, r"^block_tables\[0, 62\]: "),
    "a block too far": ({"block_tables": lambda a: changed(a, (0, 62), a.size + 1)}, r"^block_tables\[0, 62\]: "),
    "one length too few": ({"context_tokens": lambda a: a[:1]}, "^context_tokens: "),
    "a negative length": ({"context_tokens": lambda a: changed(a, 0, -1)}, r"^context_tokens\[0\]: expected 0 or more"),
    "the least length": ({"context_tokens": lambda a: changed(a, 1, LEAST)}, r"^context_tokens\[1\]: "),
    "more than planned": (
        {"context_tokens": lambda a: changed(a, 0, 2001)},
        r"^context_tokens\[0\]: expected at most max_cont",
    ),
    "the most length": ({"context_tokens": lambda a: changed(a, 0, MOST)}, "^block_tables: "),
    "read-only out": ({"out": read_only}, "^out: .*read-only"),
    "out of one entry": ({"out": lambda a: np.lib.stride_tricks.as_strided(a, strides=(0, 0, 4))}, "^out: .*on top of each"),
    "overlapping out": (
        {"out": lambda a: np.lib.stride_tricks.as_strided(a, strides=(1536, 252, 4))},
        "^out: .*on top of each",
    ),
}


@pytest.mark.parametrize("kind", SHAPES_AND_NUMBERS)
def test_wrong_shapes_and_numbers_are_refused(good, kind):
    spoils, said = SHAPES_AND_NUMBERS[kind]
    with pytest.raises(ValueError, match=said):
        good.run(**{name: spoil(good.arguments[name]) for name, spoil in spoils.items()})


def test_too_many_requests_are_refused(good):
    twice = {
        name: np.concatenate([good.arguments[name]] * 2) for name in ("queries", "block_tables", "context_tokens", "out")
    }
    with pytest.raises(ValueError, match="^context_tokens.*: expected at most max_requests = 2, got 4"):
        good.run(**twice)


@pytest.mark.parametrize("argument", ["queries", "keys", "values", "summaries", "block_tables", "context_tokens"])
def test_out_must_lie_apart_from_what_is_read(good, argument):
    read = good.memory if argument == "summaries" else good.arguments[argument]
    size = good.arguments["out"].size
    bytes_of = read.reshape(-1).view(np.uint8) if read.flags.c_contiguous else None
    if bytes_of is None or bytes_of.size < 4 * size:
        bytes_of = np.zeros(4 * size + read.nbytes, np.uint8)
        read = bytes_of[4 * size - 4 :][: read.nbytes].view(read.dtype).reshape(read.shape)
    out = bytes_of[: 4 * size].view(np.float32).reshape(good.arguments["out"].shape)
    name = "memory" if argument == "summaries" else argument
    given = {} if argument == "summaries" else {argument: read}
    with pytest.raises(ValueError, match=f"^out: expected memory apart from {name}"):
        good.run(out=out, **given)


@pytest.mark.filterwarnings("ignore:nanobind")
def test_summaries_must_be_those_that_were_planned(good):
    def summaries(**changes):
        settings = {"format": CONFIG.format, "head_dim": 64, "kv_heads": 2, "values": True, **changes}
        memory = np.zeros((len(good.memory), locks_cpp.page_bytes(**settings)), np.uint8)
        return locks_cpp.Summaries(memory, **settings)

    for changes in ({"format": "paper"}, {"head_dim": 128}, {"kv_heads": 1}, {"values": False}):
        with pytest.raises(ValueError, match="^summaries: expected graded8, head_dim 64, kv_heads 2, with values, got "):
            good.run(summaries=summaries(**changes))
    for other in (None, good.memory, locks_cpp.Summaries.__new__(locks_cpp.Summaries)):
        with pytest.raises(ValueError, match="^summaries: expected a Summaries"):
            good.run(summaries=other)
    few = locks_cpp.Summaries(good.memory[:-1], format=CONFIG.format, head_dim=64, kv_heads=2, values=True)
    with pytest.raises(ValueError, match="^summaries.num_pages: expected at least"):
        good.run(summaries=few)


MEMORY = {
    "too few bytes": (lambda m: m[:, :-1], "^memory: expected .* bytes a page"),
    "no bytes": (lambda m: m[:, :0], "^memory: "),
    "another type": (lambda m: m.view(np.int8), "^memory: expected uint8"),
    "one axis": (lambda m: m.ravel(), "^memory: "),
    "read-only": (read_only, "^memory: .*read-only"),
    "bytes": (lambda m: m.tobytes(), "^memory: "),
    "gaps": (spread, "^memory: "),
    "pages backwards": (lambda m: m[::-1], "^memory: expected ascending pages"),
    "pages on top of each other": (lambda m: np.lib.stride_tricks.as_strided(m, strides=(m.shape[1] - 1, 1)), "^memory: "),
    "one page": (lambda m: np.broadcast_to(m[0], m.shape), "^memory: "),
    "a list": (lambda m: m.tolist(), "^memory: "),
}


@pytest.mark.parametrize("kind", MEMORY)
def test_memory_that_holds_no_summaries_is_refused(kind):
    spoil, said = MEMORY[kind]
    memory = np.zeros((4, locks_cpp.page_bytes("paper", 64, 2, False)), np.uint8)
    with pytest.raises(ValueError, match=said):
        locks_cpp.Summaries(spoil(memory), format="paper", head_dim=64, kv_heads=2, values=False)


@pytest.mark.parametrize("number", [-1, LEAST, MOST, 64])
def test_pages_out_of_range_are_refused(number):
    cache = make_cache(np.random.default_rng(42), [500])
    memory = np.zeros((64, locks_cpp.page_bytes("paper", 64, 2, False)), np.uint8)
    summaries = locks_cpp.Summaries(memory, format="paper", head_dim=64, kv_heads=2, values=False)
    with pytest.raises(ValueError, match=r"^pages\[1\]: expected a page number"):
        locks_cpp.summarize(cache.keys, None, np.array([0, number], np.int32), summaries)
    assert not memory.any()
    queries = make_queries(np.random.default_rng(43), cache)
    with pytest.raises(ValueError, match=r"^pages\[1\]: expected a page number"):
        locks_cpp.prefill(
            queries,
            cache.keys,
            cache.values,
            np.array([0, number], np.int32),
            cache.tokens,
            queries.copy(),
            softmax_scale=1.0,
        )


def test_what_summarize_refuses():
    cache = make_cache(np.random.default_rng(44), [500])
    pages = np.zeros(1, np.int32)
    _, summaries, _ = make_summaries(cache, CONFIG)
    with pytest.raises(ValueError, match="^values: expected .* got None"):
        locks_cpp.summarize(cache.keys, None, pages, summaries)
    with pytest.raises(ValueError, match="^values: "):
        locks_cpp.summarize(cache.keys, cache.values[:-1], pages, summaries)
    with pytest.raises(ValueError, match="^keys: "):
        locks_cpp.summarize(cache.keys[:, :, :1], cache.values, pages, summaries)
    with pytest.raises(ValueError, match="^pages: "):
        locks_cpp.summarize(cache.keys, cache.values, [0], summaries)
    with pytest.raises(ValueError, match="^pool: expected a ThreadPool or None, got 2"):
        locks_cpp.summarize(cache.keys, cache.values, pages, summaries, pool=2)
    with pytest.raises(ValueError, match="^summaries: "):
        locks_cpp.summarize(cache.keys, cache.values, pages, None)


def test_what_prefill_refuses():
    rng = np.random.default_rng(45)
    cache = make_cache(rng, [100], block_tokens=32)
    pages = (cache.tables[0][:, None] * 2 + np.arange(2)).ravel().astype(np.int32)
    queries = make_queries(rng, cache, count=3)
    good = {
        "queries": queries,
        "keys": cache.keys,
        "values": cache.values,
        "pages": pages,
        "visible_tokens": np.array([1, 50, 100], np.int32),
        "out": np.empty_like(queries),
        "softmax_scale": 0.125,
    }
    locks_cpp.prefill(**good)
    refusals = [
        ({"visible_tokens": np.array([1, 0, 5], np.int32)}, r"^visible_tokens\[1\]: expected 1 to 128 tokens, got 0"),
        ({"visible_tokens": np.array([1, 2, 129], np.int32)}, r"^visible_tokens\[2\]: "),
        ({"visible_tokens": np.array([1, 2, LEAST], np.int32)}, r"^visible_tokens\[2\]: "),
        ({"visible_tokens": np.array([1, 2], np.int32)}, "^visible_tokens: "),
        ({"pages": pages[:0]}, r"^visible_tokens\[0\]: expected 1 to 0 tokens"),
        ({"pages": pages[:3]}, r"^visible_tokens\[1\]: expected 1 to 48 tokens"),
        ({"pages": pages[1:].copy()}, r"^pages\[0\]: expected .*, the block's next page"),
        ({"queries": queries[..., :63].copy()}, "^head_dim: "),
        ({"queries": queries[:, :5].copy(), "out": good["out"][:, :5].copy()}, "^query_heads: "),
        ({"keys": cache.keys[:, :, :0], "values": cache.values[:, :, :0]}, "^kv_heads: "),
        ({"out": queries}, "^out: expected memory apart from queries"),
        ({"softmax_scale": 0.0}, "^softmax_scale: "),
        ({"softmax_scale": float("nan")}, "^softmax_scale: "),
        ({"softmax_scale": float("inf")}, "^softmax_scale: "),
        ({"softmax_scale": None}, "^softmax_scale: "),
        ({"pool": "two"}, "^pool: "),
    ]
    for changes, said in refusals:
        with pytest.raises(ValueError, match=said):
            locks_cpp.prefill(**{**good, **changes})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", "paper2"), ("format", 3), ("budget_tokens", 10), ("budget_tokens", -1), ("budget_tokens", 2**40),
        ("budget_tokens", "many"), ("budget_tokens", 1.5), ("sink_tokens", -1), ("recent_tokens", -16), ("part_tokens", 3),
        ("candidate_factor", 0.5), ("candidate_factor", float("nan")), ("candidate_factor", None),
        ("completion_fraction", -0.1), ("completion_fraction", 1.1), ("combine", "mean"), ("combine", None),
        ("min_context_tokens", -1),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^{name}: "):
        locks_cpp.Config(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("query_heads", 3), ("query_heads", 0), ("query_heads", 10**6), ("kv_heads", 0), ("kv_heads", -2), ("head_dim", 65),
        ("head_dim", -64), ("softmax_scale", 0.0), ("softmax_scale", float("inf")), ("softmax_scale", "1"),
        ("max_requests", 0), ("max_requests", 10**6), ("max_context_tokens", 0), ("max_context_tokens", MOST),
        ("max_context_tokens", 1.0), ("pool", 2),
    ],
)  # fmt: skip
def test_a_wrong_limit_is_refused_by_name(name, value):
    settings = {"query_heads": 4, "kv_heads": 2, "head_dim": 64, "softmax_scale": 0.1, "max_requests": 1}
    settings |= {"max_context_tokens": 4096, name: value}
    with pytest.raises(ValueError, match=f"^{name}: "):
        locks_cpp.DecodePlan(CONFIG, **settings)


def test_other_wrong_settings():
    for config in (None, "paper", {}):
        with pytest.raises(ValueError, match="^config: expected a locks_cpp.Config"):
            locks_cpp.DecodePlan(
                config, query_heads=1, kv_heads=1, head_dim=64, softmax_scale=1.0, max_requests=1, max_context_tokens=64
            )
    for threads in (0, -1, 2000, 10**12, "2", None, 1.5):
        with pytest.raises(ValueError, match="^threads: expected an integer from 1 to "):
            locks_cpp.ThreadPool(threads)
    for arguments in [
        ("x", 64, 2, True),
        ("paper", 0, 2, True),
        ("paper", 64, -1, True),
        ("paper", 64, 2, 1),
        (None, 64, 2, True),
    ]:
        with pytest.raises(ValueError, match="^(format|head_dim|kv_heads|values): "):
            locks_cpp.page_bytes(*arguments)


def test_a_refused_step_leaves_the_plan_usable(good):
    first, _ = step(good.plan, good.cache, good.summaries, good.arguments["queries"])
    with pytest.raises(ValueError, match="^keys: "):
        good.run(keys=None)
    again, _ = step(good.plan, good.cache, good.summaries, good.arguments["queries"])
    assert np.array_equal(first, again)


def test_a_workspace_beyond_the_memory_is_a_memory_error():
    limits = {"query_heads": 1024, "kv_heads": 1, "max_requests": 8192, "max_context_tokens": 2**28}
    for config in (CONFIG, locks_cpp.Config(combine="per_query_head", budget_tokens=2**30 - 1, part_tokens=1)):
        with pytest.raises(MemoryError):
            locks_cpp.DecodePlan(config, head_dim=256, softmax_scale=1.0, **limits)
