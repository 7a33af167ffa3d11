"""What was run, as a report tells it: lines of a name and a text, and the methods' settings. `identity` and `run` are those
of run.json."""

from __future__ import annotations

PROTOCOLS = {
    "question-sparse": "contexts are read with dense attention, questions and answers with the method",
    "prompt-dense": "the whole prompt is read with dense attention, answers with the method",
}


def lines(identity, run):
    config = identity["config"]
    yield "command", run["command"]
    yield from _servers(config, run["endpoints"]) if run.get("endpoints") else _engine(identity, run)
    yield "seed", str(config["seed"])
    yield "decoding", "; ".join(dict.fromkeys(["greedy", *_sampled(config)]))
    if config["before"] or config["after"]:
        yield "around the prompt", f"{config['before']!r} ... {config['after']!r}"


def _servers(config, endpoints):
    for name, server in endpoints.items():
        way = "chat" if config["methods"][name]["chat"] else "completions"
        yield name, f"{server['url']}, {way}: {server['model']}, served as {server['served'] or 'a model without a name'}"
    yield "protocol", "whole prompts are sent; what is read densely, and what is not, is the servers'"


def _sampled(config):
    for task in config["tasks"]:
        if task.get("temperature"):
            drawn = f"{task['name']}: temperature {task['temperature']:g}, top_p {task['top_p']:g}"
            yield drawn if task["name"] == "replay" else f"{drawn}, {task['repeats']} answers to each problem"


def _engine(identity, run):
    facts, config, model = run["facts"], identity["config"], identity["model"]
    yield "model", f"{run['model_path']}, {model['bytes']:,} bytes, first 16 MiB sha256 {model['sha256']}"
    yield (
        "shape",
        f"{facts['architecture']}: {facts['layers']} layers, {facts['query_heads']} query heads, "
        f"{facts['kv_heads']} KV heads of {facts['head_dim']}, trained for {facts['max_context_tokens']:,} tokens",
    )
    yield "host", f"{facts['host']}, {config['threads']} threads; f16 caches where nothing else is set"
    yield "plug-in", f"locks {facts['plugin']}, sha256 {identity['plugin']['sha256']}"
    yield "protocol", f"{config['protocol']}: {PROTOCOLS[config['protocol']]}"
    if identity["rope_scale"]:
        yield "positions", stretched(identity, run)
    if facts["declined"]:
        yield "left to llama.cpp", ", ".join(f"{reason}: {count}" for reason, count in facts["declined"].items())


def stretched(identity, run):
    own = run["facts"]["max_context_tokens"]
    return f"stretched by {identity['rope_scale']} (YaRN) beyond the {own:,} tokens that the model was trained for"


def settings_table(config):
    rows = [["method", "settings"]]
    for name, settings in config["methods"].items():
        rows.append([name, ", ".join(f"{key} = {value}" for key, value in settings.items()) or "the defaults"])
    return rows
