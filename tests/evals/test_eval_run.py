"""The runner, with an engine that needs no model; and once with a real model."""

import dataclasses
import json
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import fake_engine
from fake_engine import TABLES, FakeEngine, make_run

import config  # noqa: E402
import engine  # noqa: E402
import run  # noqa: E402
import task_list  # noqa: E402
from config import ConfigError  # noqa: E402
from estimate import Estimate  # noqa: E402
from plugin_path import find_plugin  # noqa: E402
from results import Folder, load_results  # noqa: E402

RESULTS = (6 + 6 + 2 + 1 + 1) * 3


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    fake_engine.use_tiny_tasks(monkeypatch)
    monkeypatch.setattr(FakeEngine, "divides_by_zero", False)
    for name, value in (("answered", 0), ("read_contexts", 0), ("fails", ()), ("calls_taken", 2), ("unreadable", ())):
        monkeypatch.setattr(FakeEngine, name, value)


def results_of(folder):
    return load_results(Path(folder) / "out" / "results.jsonl")


def changed(**changes):
    return {**TABLES, **changes}


def test_every_prompt_is_answered_by_every_method_and_read_once(tmp_path):
    make_run(tmp_path).go()
    results = results_of(tmp_path)
    assert len(results) == RESULTS and FakeEngine.read_contexts == RESULTS / 3
    assert len({(r["task"], r["index"], r["method"]) for r in results}) == RESULTS
    dense = [r for r in results if r["method"] == "dense" and r["name"] == "tiny/passkey"]
    assert all(r["score"] == 1 and r["attend_bytes"] == r["dense_bytes"] for r in dense)
    quest = [r["score"] for r in results if r["method"] == "quest <64>" and r["task"] == "tiny/passkey 400"]
    assert quest == [0, 0, 0, 0, 0, 1]
    assert not (tmp_path / "out" / "caches").exists()


def test_a_result_says_what_was_read_and_held(tmp_path):
    make_run(tmp_path).go()
    row = next(r for r in results_of(tmp_path) if r["method"] == "locks 128" and r["name"] == "kl")
    assert row["attended_tokens"] == 128 and row["coverage"] == 0.9
    page = 4 * fake_engine.LAYERS * fake_engine.KV_HEADS * fake_engine.HEAD_DIM
    assert row["dense_bytes"] == row["cache_bytes"] == 300 * page and row["attend_bytes"] == 128 * page
    assert row["held_bytes"] == 300 * page // 8 and row["coverage_by_head"] == [[0.8], [1.0]]
    assert row["score"] == pytest.approx(row["kl"]) and len(row["kl_positions"]) == fake_engine.POSITIONS
    rival = next(r for r in results_of(tmp_path) if r["method"] == "quest <64>")
    assert rival["held_bytes"] > 0 and rival["coverage"] is None and rival["coverage_by_head"] is None


def test_bytes_of_a_q8_0_cache_are_compared_with_those_of_f16(tmp_path):
    methods = {"dense": {"selector": "dense"}, "dense q8_0": {"selector": "dense", "cache_type": "q8_0"}}
    make_run(tmp_path, changed(method=methods)).go()
    rows = results_of(tmp_path)
    for row in (row for row in rows if row["method"] == "dense q8_0"):
        # 32 numbers of a byte, and their scale of two.
        assert row["attend_bytes"] / row["dense_bytes"] == row["cache_bytes"] / row["dense_bytes"] == pytest.approx(34 / 64)
    assert all(row["cache_bytes"] == row["dense_bytes"] for row in rows if row["method"] == "dense")


def test_what_dense_attention_generates_is_replayed(tmp_path):
    make_run(tmp_path).go()
    rows = {row["method"]: row for row in results_of(tmp_path) if row["name"] == "replay"}
    assert rows["dense"]["kl"] == 0 and rows["dense"]["same_positions"] == [1] * fake_engine.POSITIONS
    quest = rows["quest <64>"]
    assert quest["score"] == quest["kl"] == pytest.approx(sum(quest["kl_positions"]) / fake_engine.POSITIONS)
    assert quest["same_positions"] == [1, 1, 1, 0, 1, 1, 1, 0] and quest["same"] == 0.75
    assert quest["details"]["length"] == 300 and not quest["cut_off"]


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    killed = subprocess.run(
        [sys.executable, fake_engine.__file__, str(tmp_path / "killed"), "17"], capture_output=True, text=True, timeout=60
    )
    assert killed.returncode == -9, killed.stderr
    before = (tmp_path / "killed" / "out" / "results.jsonl").read_text()
    assert before.count("\n") == 17
    with open(tmp_path / "killed" / "out" / "results.jsonl", "a", encoding="utf-8") as file:
        file.write('{"task": "kl 300", "ind')
    make_run(tmp_path / "killed").go()
    assert FakeEngine.answered == RESULTS - 17
    make_run(tmp_path / "whole").go()
    whole = sorted(results_of(tmp_path / "whole"), key=json.dumps)
    assert sorted(results_of(tmp_path / "killed"), key=json.dumps) == whole
    assert (tmp_path / "killed" / "out" / "results.jsonl").read_text().startswith(before)
    answered = FakeEngine.answered
    make_run(tmp_path / "killed").go()
    assert FakeEngine.answered == answered


def test_small_caches_at_a_time_give_the_same(tmp_path):
    make_run(tmp_path / "all").go()
    make_run(tmp_path / "few", cache_mb=1).go()
    assert sorted(results_of(tmp_path / "few"), key=json.dumps) == sorted(results_of(tmp_path / "all"), key=json.dumps)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (changed(seed=2), "config.seed was 1, and is 2"),
        (changed(method={**TABLES["method"], "new": {}}), "config.methods.new is {}, and was not there"),
        (
            changed(method={"dense": {"selector": "dense"}}),
            "config.methods.locks 128 was {'budget_tokens': 128}, and is not",
        ),
        (changed(protocol="prompt-dense"), "config.protocol was 'question-sparse', and is 'prompt-dense'"),
    ],
)
def test_another_configuration_is_refused_by_what_differs(tmp_path, tables, message):
    make_run(tmp_path).go()
    with pytest.raises(ConfigError) as error:
        make_run(tmp_path, tables).go()
    assert message in str(error.value) and "--out" in str(error.value)


def test_another_plugin_is_another_run(tmp_path):
    first = make_run(tmp_path)
    first.go()
    (tmp_path / "plugin.so").write_bytes(b"rebuilt")
    with pytest.raises(ConfigError, match="plugin.bytes was 9, and is 7"):
        first.go()


def test_two_runs_do_not_share_a_folder(tmp_path):
    with Folder(tmp_path / "out") as folder:
        folder.open({})
        with pytest.raises(ConfigError, match="another run is writing"):
            make_run(tmp_path).go()


def test_a_damaged_line_is_named(tmp_path):
    make_run(tmp_path).go()
    with open(tmp_path / "out" / "results.jsonl", "a", encoding="utf-8") as file:
        file.write("nothing\n")
    with pytest.raises(ConfigError, match=f"results.jsonl, line {RESULTS + 1}: not a result"):
        make_run(tmp_path).go()


def test_a_failure_is_recorded_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeEngine, "fails", ("quest",))
    make_run(tmp_path).go()
    failed = [r for r in results_of(tmp_path) if "failed" in r]
    assert len(failed) == RESULTS / 3 and failed[0]["failed"] == "MemoryError: no room" and "score" not in failed[0]
    monkeypatch.setattr(FakeEngine, "fails", ())
    make_run(tmp_path).go()
    assert len([r for r in results_of(tmp_path) if "failed" not in r]) == RESULTS


def test_a_context_that_cannot_be_read_fails_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeEngine, "unreadable", (2,))
    make_run(tmp_path).go()
    failed = [r for r in results_of(tmp_path) if "failed" in r]
    assert len(failed) == 3 and len({r["method"] for r in failed}) == 3
    assert {r["failed"] for r in failed} == {"RuntimeError: no cache of this size"}
    monkeypatch.setattr(FakeEngine, "unreadable", ())
    make_run(tmp_path).go()
    assert len([r for r in results_of(tmp_path) if "failed" not in r]) == RESULTS


def test_a_result_that_is_no_number_fails_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeEngine, "divides_by_zero", True)
    make_run(tmp_path).go()
    failed = [r for r in results_of(tmp_path) if "failed" in r]
    assert len(failed) == RESULTS / 3 and failed[0]["method"] == "quest <64>" and "ValueError" in failed[0]["failed"]


def test_the_half_line_of_a_run_that_goes_on_is_not_a_result_yet(tmp_path):
    make_run(tmp_path).go()
    with open(tmp_path / "out" / "results.jsonl", "a", encoding="utf-8") as file:
        file.write('{"task": "kl 300", "ind')
    assert len(results_of(tmp_path)) == RESULTS


def test_a_context_beyond_the_models_is_refused_or_stretched(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeEngine, "own_context", 320)
    with pytest.raises(ConfigError, match="tiny/passkey 400.*trained for 320.*rope_scaling = true"):
        make_run(tmp_path).go()
    said = []
    make_run(tmp_path, changed(rope_scaling=True), said).go()
    described = json.loads((tmp_path / "out" / "run.json").read_text())
    assert described["identity"]["rope_scale"] == 1.375  # 405 tokens, in eighths
    assert any("stretched by 1.375" in line for line in said)


def test_a_model_that_the_plugin_declines_is_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeEngine, "calls_taken", 0)
    with pytest.raises(ConfigError, match="none of this model's attention .mla."):
        make_run(tmp_path).go()
    assert FakeEngine.answered == 0


def test_prompt_dense_leaves_the_question_to_dense_attention(tmp_path):
    make_run(tmp_path, changed(protocol="prompt-dense")).go()
    row = next(r for r in results_of(tmp_path) if r["name"] == "tiny/passkey")
    assert "kl" not in row
    row = next(r for r in results_of(tmp_path) if r["name"] == "kl")
    assert row["kl_positions"]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (changed(sead=3), "unknown key 'sead'; did you mean 'seed'? Known: model, out, seed"),
        (changed(threads=0), "threads is 0; it may be 1 to"),
        (changed(seed="one"), "seed is 'one'; expected a whole number"),
        (changed(rope_scaling=1), "rope_scaling is 1; expected true or false"),
        (changed(protocol="dense"), "known: question-sparse, prompt-dense"),
        (changed(task=[]), "there is no task"),
        (changed(task=[{"tokens": 100}]), "task 1: name is missing"),
        (changed(task=[{"name": "kl", "count": 0}]), "task 1: count is 0"),
        (changed(task=[{"name": "kl", "tokns": 1}]), "task 1: unknown key 'tokns'; did you mean 'tokens'?"),
        (changed(task=[{"name": "kl", "tokens": [100, "200"]}]), "expected a whole number, or a list of them"),
        (changed(task=[{"name": "kl"}, {"name": "kl"}]), "the task 'kl 4,096' is there twice"),
        (changed(method={}), "there is no method"),
        (
            changed(method={"a": {"budget": 5}}),
            "method 'a': unknown setting 'budget'; did you mean 'budget_tokens'? Known: selector",
        ),
        (changed(method={"a": {"budget_tokens": True}}), "expected a number or a text"),
        (changed(method={"a": {"cache_type": "q4_0"}}), "method 'a': cache_type is 'q4_0'; known: f16, q8_0"),
        (changed(method={"a": {"selector": "quest", "cache_type": "q8_0"}}), "method 'a': quest works by single dimensions"),
    ],
)
def test_bad_configurations_are_named(tables, message):
    with pytest.raises(ConfigError) as error:
        config.parse(tables)
    assert message in str(error.value)


def test_unknown_tasks_and_missing_files_are_named(tmp_path):
    def parsed(**task):
        return config.parse(changed(task=[task])).tasks

    with pytest.raises(ConfigError, match="unknown task 'niah'. Known: kl, perplexity, replay, tiny/passkey"):
        task_list.check(parsed(name="niah"))
    with pytest.raises(ConfigError, match="cannot read /none.txt"):
        task_list.check(parsed(name="kl", text="/none.txt"))
    with pytest.raises(ConfigError, match="makes its own text"):
        task_list.check(parsed(name="tiny/passkey", text="/none.txt"))
    short = tmp_path / "short.txt"
    short.write_text("too short " * 40)
    with pytest.raises(ConfigError, match="the text has 80 tokens, and 309 are needed"):
        make_run(tmp_path, changed(task=[{"name": "kl", "text": str(short), "tokens": 300, "positions": 8}])).go()
    with pytest.raises(ConfigError, match="takes no data"):
        make_run(tmp_path, changed(task=[{"name": "tiny/passkey", "data": "x", "tokens": 100}])).go()


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (None, [], "cannot read"),
        ("seed = ", [], "is not TOML"),
        ('[[task]]\nname = "kl"\n[method.a]\n', ["--method", "b"], "has no method 'b'. It has: a"),
        ('model = "/none.gguf"\n[[task]]\nname = "kl"\n[method.a]\n', [], "no such model file: /none.gguf"),
    ],
)
def test_the_command_line_says_what_is_wrong(tmp_path, text, flags, message):
    path = tmp_path / "eval.toml"
    if text is not None:
        path.write_text(text)
    command = [sys.executable, run.__file__, "--config", str(path), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


def test_what_is_left_counts_the_methods_that_read_contexts_again():
    item = types.SimpleNamespace(context=range(1500), steps=lambda protocol: 30)
    left = Estimate([(item, ["dense", "rocketkv"])], "question-sparse", 0, 2, False, ["rocketkv"])
    left.has_read(item, 10)
    left.has_answered(item, 3)
    assert left.seconds_left() == pytest.approx(10 + 3)
    left.has_read(item, 10)
    left.has_answered(item, 3)
    assert left.seconds_left() == 0


def test_no_rest_of_a_prompt_counts_as_decoding():
    for count in range(1, 3000):
        rest = count % engine.chunk_tokens(count)
        assert rest == 0 or rest > engine.DECODE_ROWS or count <= engine.DECODE_ROWS


@pytest.mark.parametrize("path", sorted((Path(run.__file__).parent / "configs").glob("*.toml")), ids=lambda path: path.stem)
def test_the_configurations_can_be_read(path):
    assert len(config.parse(config.read(path)).methods) >= 5


def test_the_configurations_name_tasks_that_there_are():
    listed = subprocess.run([sys.executable, run.__file__, "--tasks"], capture_output=True, text=True, timeout=60)
    known = listed.stdout.split()
    assert listed.returncode == 0 and {"kl", "perplexity", "ruler/vt", "retrieval/needle"} <= set(known)
    for path in (Path(run.__file__).parent / "configs").glob("*.toml"):
        assert {task.name for task in config.parse(config.read(path)).tasks} <= set(known)


def test_an_engine_of_a_generated_model(tmp_path):
    """Everything attended is dense; a stretched model reads beyond its own length, and reads otherwise."""
    import make_gguf

    try:
        plugin = find_plugin()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    small = {"layers": 2, "hidden": 256, "query_heads": 4, "kv_heads": 2, "feed_forward": 512, "vocabulary": 256}
    make_gguf.write(tmp_path / "small.gguf", make_gguf.Shape(**small, context=1024, full_precision=True))
    tokens = np.random.default_rng(1).integers(0, 256, 1209).astype(np.int32)
    job = engine.Job(tmp_path / "cache.npy", tmp_path / "rows.npy", tokens[:1200], tokens[1200:], 0, True, False, 8)

    def answer(settings, rope_scale, read=False, **changes):
        with engine.Engine(tmp_path / "small.gguf", plugin, settings, 2, rope_scale) as made:
            facts = made.facts()
            assert facts["max_context_tokens"] == 1024 and facts["rope_pairs"] == "interleaved"
            assert float(facts["rope_base"]) == 500000 and facts["calls_taken"] > 0
            if read:
                made.read(job)
            return made.answer(dataclasses.replace(job, **changes))

    dense = answer({"selector": "dense"}, 1.25, read=True)
    assert dense.kl == [0] * 8 and all(dense.same) and dense.statistics["decode_steps"] == 8
    assert dense.statistics["attend_bytes"] == dense.statistics["dense_bytes"]
    assert max(answer({"budget_tokens": 100000}, 1.25).kl) < 1e-6
    assert max(answer({"selector": "dense"}, 1.25, read_anew=True).kl) < 1e-6
    assert max(answer({"budget_tokens": 128}, 1.25).kl) > 1e-6
    quantised = answer({"selector": "dense", "cache_type": "q8_0"}, 1.25, read_anew=True)
    assert 1e-6 < max(quantised.kl) < 0.1
    assert quantised.statistics["dense_bytes"] == dense.statistics["dense_bytes"] * 34 / 64
    assert max(answer({"selector": "dense"}, None).kl) > 1e-6
    with pytest.raises(RuntimeError, match="refused"):
        engine.check_settings(plugin, {"selector": "quest", "part_tokens": 4})
    engine.check_settings(plugin, {"selector": "quest"})
    engine.check_settings(plugin, {"selector": "dense", "cache_type": "q8_0"})
    replay = {"trajectory": tmp_path / "trajectory.npy", "question": tokens[:0], "new_tokens": 9, "forced": True}
    job = dataclasses.replace(job, **replay)
    dense = answer({"selector": "dense"}, 1.25, read=True)
    again = answer({"selector": "dense"}, 1.25, read=True)
    assert dense.text == again.text and dense.kl == [0] * 8 and len(dense.same) == 8 and all(dense.same)
    # The likeliest token each time: that is how it was generated.
    assert max(dense.nll) < 6 and dense.statistics["decode_steps"] == 8
    sparse = answer({"budget_tokens": 128}, 1.25)
    assert sparse.text == dense.text and max(sparse.kl) > 1e-6


def test_a_real_model_answers_like_itself(tmp_path):
    from llama_host import HostError, real_model_path

    try:
        real_model_path()
        plugin = find_plugin()
    except (HostError, FileNotFoundError) as error:
        pytest.skip(str(error))
    path = tmp_path / "eval.toml"
    path.write_text(
        f'out = "{tmp_path / "out"}"\n[[task]]\nname = "kl"\ntokens = 1100\npositions = 4\n'
        '[[task]]\nname = "replay"\ntokens = 1100\npositions = 12\n'
        '[method.dense]\nselector = "dense"\n[method.locks]\nbudget_tokens = 256\n[method.random]\n'
        'selector = "random"\nbudget_tokens = 256\n[method.quest]\nselector = "quest"\nbudget_tokens = 256\n'
    )
    command = [sys.executable, run.__file__, "--config", str(path), "--plugin", str(plugin)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    results = load_results(tmp_path / "out" / "results.jsonl")
    rows = {row["method"]: row for row in results if row["name"] == "kl"}
    assert rows["dense"]["kl"] == 0 and rows["dense"]["attend_bytes"] == rows["dense"]["dense_bytes"]
    assert 0 < rows["locks"]["kl"] < rows["random"]["kl"]
    assert rows["locks"]["attended_tokens"] <= 256 and 0.5 < rows["locks"]["coverage"] < 1
    assert rows["locks"]["steps"] == 4 and 0.1 < rows["locks"]["held_bytes"] / rows["locks"]["dense_bytes"] < 0.2
    # Two vectors of a page of 16 keys and 16 values; the layers that it leaves dense have none.
    quest = rows["quest"]
    assert quest["held_bytes"] / quest["dense_bytes"] == pytest.approx(28 / 30 / 16, rel=0.02)
    shares = np.array(rows["locks"]["coverage_by_head"])
    assert shares.shape == (30, 3) and np.isclose(shares.mean(), rows["locks"]["coverage"], atol=1e-4)
    assert 0 < shares.min() < shares.max() <= 1
    replayed = {row["method"]: row for row in results if row["name"] == "replay"}
    assert replayed["dense"]["kl"] == 0 and len(replayed["dense"]["same_positions"]) == 12
    assert len({row["prediction"] for row in replayed.values()}) == 1 and replayed["locks"]["prediction"]
    assert 0 < replayed["locks"]["kl"] < replayed["random"]["kl"]
    assert "| locks |" in done.stdout and (tmp_path / "out" / "report.html").exists()
