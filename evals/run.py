#!/usr/bin/env python3
"""Dense attention, LOCKS and its rivals on the same prompts: in one llama.cpp, from the same caches; or over endpoints.

    python evals/run.py --config evals/configs/small.toml [--out FOLDER] [--tasks]

In llama.cpp every context is read once, with dense attention; each method goes on from the saved cache. Results are written
one by one, and the same command goes on where a run was stopped. At the end report.html and report.md are made.
docs/EVALS.md explains the configuration.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent / "python", HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import config as configuration  # noqa: E402
import engine as engines  # noqa: E402
import report  # noqa: E402
import task_list  # noqa: E402
from config import ConfigError  # noqa: E402
from endpoint import EndpointError  # noqa: E402
from endpoint_run import EndpointRun  # noqa: E402
from llama_host import HostError  # noqa: E402
from runner import Run  # noqa: E402
from session import SessionError  # noqa: E402


def parse(arguments):
    parser = argparse.ArgumentParser(prog="evals/run.py", description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, help="a TOML file; docs/EVALS.md has its keys")
    parser.add_argument("--tasks", action="store_true", help="list the tasks that are known, and end")
    parser.add_argument("--out", help="the folder of the run")
    parser.add_argument("--model", help="a GGUF file (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--plugin", type=Path, help="the plug-in to load (default: the one that make built)")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--jobs", type=int, metavar="N", help="work on so many prompts at a time, with --threads each")
    parser.add_argument("--protocol", choices=configuration.PROTOCOLS)
    parser.add_argument("--rope-scaling", action="store_true", default=None, help="allow contexts beyond the model's own")
    parser.add_argument("--no-progress", dest="progress", action="store_false", default=None)
    parser.add_argument("--method", action="append", metavar="NAME", help="only these methods of the file; may be repeated")
    parsed = parser.parse_args(arguments)
    if not parsed.config and not parsed.tasks:
        parser.error("--config is missing")
    return parsed


def prepare(parsed, argv):
    """A run of what these flags say, with everything checked that can be without the model."""
    from llama_host import real_model_path
    from plugin_path import find_plugin

    command = shlex.join(["python", "evals/run.py", *argv])
    tables = configuration.read(parsed.config)
    if parsed.method:
        methods = tables.get("method", {})
        if not isinstance(methods, dict):
            raise ConfigError(f"{parsed.config} has no methods by name; write [method.locks], budget_tokens = 256")
        missing = [name for name in parsed.method if name not in methods]
        if missing:
            raise ConfigError(f"{parsed.config} has no method {missing[0]!r}. It has: {', '.join(methods)}")
        tables["method"] = {name: methods[name] for name in parsed.method}
    names = ("out", "model", "seed", "threads", "jobs", "protocol", "rope_scaling", "progress")
    flags = {name: getattr(parsed, name) for name in names}
    config = configuration.parse(tables, flags, str(parsed.config))
    task_list.check(config.tasks, config.endpoints)
    if config.endpoints:
        if parsed.plugin:
            raise ConfigError("--plugin is for llama.cpp, and these methods are endpoints")
        return EndpointRun(config, command)
    if config.model and not Path(config.model).is_file():
        raise ConfigError(f"no such model file: {config.model}")
    plugin = parsed.plugin or find_plugin()
    if not plugin.is_file():
        raise ConfigError(f"no such file: {plugin}")
    return Run(config, config.model or real_model_path(), str(plugin), command)


def check_methods(run):
    """Asks the plug-in about every method's settings, so that nothing is refused in the middle of a run."""
    if run.config.endpoints:
        return
    for name, settings in run.config.methods.items():
        if settings.get("selector") == "shadowkv":
            settings = {"rope_base": 10000, "rope_pairs": "interleaved", **settings}
        try:
            engines.check_settings(run.plugin, settings)
        except RuntimeError as error:
            raise ConfigError(f"method {name!r}: {error}") from error


def main(arguments=None):
    argv = sys.argv[1:] if arguments is None else list(arguments)
    parsed = parse(argv)
    if parsed.tasks:
        print("\n".join(task_list.known_names()))
        return 0
    run = prepare(parsed, argv)
    check_methods(run)
    folder = run.go()
    print("\n" + report.write(folder))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ConfigError, EndpointError, HostError, SessionError, FileNotFoundError, RuntimeError, OSError) as error:
        print(f"eval: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\neval: stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
