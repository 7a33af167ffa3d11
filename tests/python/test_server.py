"""The wheel's own llama-server with the plug-in: what its users run."""

import json
import threading
import urllib.request

from llama_host import real_model_path
from session import Session


def post(server, path, body):
    request = urllib.request.Request(
        server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def start_server(slot_folder):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = real_model_path()
    params.n_ctx, params.n_parallel = 2 * 2048, 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    params.slot_save_path = str(slot_folder) + "/"
    params.warmup = False
    return xllamacpp.Server(params)


def serve(state, text, slot_folder):
    """Two slots at once, then one saved, erased, restored and continued; returns the answers and the statistics."""
    import locks_llamacpp

    server = start_server(slot_folder)
    answers = {}

    def complete(slot, prompt, count=8):
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": True, "id_slot": slot}
        answers[slot] = post(server, "/completion", body)

    both = [threading.Thread(target=complete, args=(slot, text)) for slot in (0, 1)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    first = dict(answers)
    post(server, "/slots/0?action=save", {"filename": "slot.bin"})
    post(server, "/slots/0?action=erase", {})
    restored = post(server, "/slots/0?action=restore", {"filename": "slot.bin"})
    complete(0, text)
    del server
    return {
        "texts": [first[0]["content"], first[1]["content"], answers[0]["content"]],
        "restored": restored["n_restored"],
        "cached": answers[0]["timings"]["cache_n"],
        "statistics": locks_llamacpp.statistics(),
    }


def test_two_slots_save_and_restore(plugin, small_model, short_prose, stock, tmp_path):
    text = stock.run(detokenize, short_prose.tokens[:1100])
    # The session's own model is not the server's: the smallest will do.
    with Session(plugin, {"report": 0, "budget_tokens": 400}, model_path=small_model) as session:
        found = session.run(serve, text, tmp_path)
    counted = found["statistics"]
    assert counted["calls_declined"] == 0
    assert counted["sparse_requests"] > 0 and counted["prefill_calls"] > 0
    assert found["restored"] > 1000 and found["cached"] > 1000
    # Both slots read the same prompt, and so did the restored one; only a near tie may be decided otherwise.
    assert found["texts"][0].split()[:2] == found["texts"][1].split()[:2] == found["texts"][2].split()[:2]


def detokenize(state, tokens):
    return state.model.detokenize(tokens)
