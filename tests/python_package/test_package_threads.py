"""Pools, two threads on one plan, forks, and the end of the interpreter."""

import subprocess
import sys
import threading

import numpy as np
from built_package import STAGED, locks_cpp
from package_data import make_cache, make_plan, make_queries, make_summaries, relative_error, step

CONFIG = locks_cpp.Config()


def test_summaries_and_prefill_have_the_same_bits_with_any_pool():
    rng = np.random.default_rng(31)
    cache = make_cache(rng, [2000])
    queries = make_queries(rng, cache, count=40)
    visible = np.arange(1961, 2001, dtype=np.int32)
    results = []
    for pool in (None, locks_cpp.ThreadPool(1), locks_cpp.ThreadPool(2)):
        memory, _, _ = make_summaries(cache, CONFIG, pool=pool)
        out = np.empty_like(queries)
        locks_cpp.prefill(queries, cache.keys, cache.values, cache.tables[0], visible, out, softmax_scale=0.125, pool=pool)
        results.append((memory, out))
    for memory, out in results[1:]:
        assert np.array_equal(memory, results[0][0]) and np.array_equal(out, results[0][1])


def test_a_step_depends_on_the_threads_by_rounding_only():
    rng = np.random.default_rng(32)
    cache = make_cache(rng, [3000, 700])
    _, summaries, _ = make_summaries(cache, CONFIG)
    queries = make_queries(rng, cache)
    pool = locks_cpp.ThreadPool(2)
    assert pool.threads == 2
    out = {
        name: step(make_plan(cache, CONFIG, pool=p), cache, summaries, queries)[0]
        for name, p in {"none": None, "one": locks_cpp.ThreadPool(1), "two": pool, "two again": pool}.items()
    }
    assert np.array_equal(out["none"], out["one"])
    assert np.array_equal(out["two"], out["two again"])
    for request in range(2):
        # Both attend the same tokens, merged in another order. Each is within the bound of exact arithmetic, which is
        # largest for all tokens; values that stand in for others are taken to be at most twice as large as the largest.
        keys, values = cache.of(request)
        bound = relative_error(queries[request], keys, 0.125)[:, None] * 2 * np.abs(values).max()
        assert np.all(np.abs(out["two"][request] - out["none"][request]) <= 2 * bound)


def test_plans_of_several_threads_may_share_a_pool():
    rng = np.random.default_rng(33)
    cache = make_cache(rng, [2000])
    pool = locks_cpp.ThreadPool(2)
    _, summaries, _ = make_summaries(cache, CONFIG, pool=pool)
    queries = make_queries(rng, cache)
    want, _ = step(make_plan(cache, CONFIG, pool=pool), cache, summaries, queries)
    same = []

    def work():
        plan = make_plan(cache, CONFIG, pool=pool)
        same.append(all(np.array_equal(step(plan, cache, summaries, queries)[0], want) for _ in range(20)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 3


def test_a_second_thread_on_a_plan_is_refused():
    """Both threads call until one meets the other inside, which needs the GIL to be free while the library computes."""
    rng = np.random.default_rng(34)
    cache = make_cache(rng, [8000])
    _, summaries, _ = make_summaries(cache, CONFIG)
    queries = make_queries(rng, cache)
    plan = make_plan(cache, CONFIG)
    refusals = []

    def work():
        for _ in range(3000):
            if refusals:
                return
            try:
                step(plan, cache, summaries, queries)
            except RuntimeError as error:
                refusals.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    work()
    thread.join()
    assert refusals and "one call at a time" in refusals[0]
    step(plan, cache, summaries, queries)


def run_script(script):
    program = f"import sys; sys.path.insert(0, {str(STAGED)!r})\nimport os\nimport numpy as np\nimport locks_cpp\n{script}"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_pool_does_not_follow_a_fork():
    run = run_script("""
pool = locks_cpp.ThreadPool(2)
memory = np.zeros((1, locks_cpp.page_bytes("paper", 64, 1, False)), np.uint8)
summaries = locks_cpp.Summaries(memory, format="paper", head_dim=64, kv_heads=1, values=False)
keys, pages = np.zeros((1, 16, 1, 64), np.float16), np.zeros(1, np.int32)
child = os.fork()
if child == 0:
    try:
        locks_cpp.summarize(keys, None, pages, summaries, pool=pool)
    except RuntimeError as error:
        del pool
        os._exit(42 if "fork" in str(error) else 1)
    os._exit(2)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, locks_cpp.summarize(keys, None, pages, summaries, pool=pool).records)
""")
    assert (run.stdout.split(), run.stderr, run.returncode) == (["42", "1"], "", 0)


def test_nothing_is_printed_when_the_interpreter_ends_with_everything_alive():
    run = run_script("""
pool = locks_cpp.ThreadPool(2)
plan = locks_cpp.DecodePlan(locks_cpp.Config(), query_heads=1, kv_heads=1, head_dim=64, softmax_scale=1.0, max_requests=1,
                            max_context_tokens=4096, pool=pool)
plan.itself = plan
memory = np.zeros((1, 9999), np.uint8)
summaries = locks_cpp.Summaries(memory, format="paper", head_dim=64, kv_heads=1, values=False)
sys.modules["kept"] = [plan, pool, summaries]
""")
    assert (run.stdout, run.stderr, run.returncode) == ("", "", 0)
