"""The folder of a run: what was asked (run.json), a line for each result (results.jsonl), and who writes to it (lock).

A result is on the disk before its job begins the next. A line that a killed run left unfinished is dropped."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path

from config import ConfigError, differences

FORMAT = 2  # of what is written here; the next where results get other fields
SHOWN_DIFFERENCES = 3


class Folder:
    def __init__(self, path):
        self.path = Path(path)
        self.results = self.path / "results.jsonl"
        self._lock = None
        self._appending = threading.Lock()

    def open(self, identity):
        """Takes the folder for a run of this identity (plain data); the results that are there already."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / "lock", "a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write to {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise ConfigError(
                f"another run is writing to {self.path}; wait for it, or give another folder with --out"
            ) from None
        identity = json.loads(json.dumps({"format": FORMAT, **identity}))
        file = self.path / "run.json"
        if file.exists():
            try:
                old = json.loads(file.read_text(encoding="utf-8"))["identity"]
            except (ValueError, KeyError, TypeError):
                raise ConfigError(f"{file} is damaged; remove {self.path}, or give another folder with --out") from None
            changed = list(differences(old, identity))
            if changed:
                more = f" (and {len(changed) - SHOWN_DIFFERENCES} more)" if len(changed) > SHOWN_DIFFERENCES else ""
                raise ConfigError(
                    f"{self.path} holds a run of another configuration: {'; '.join(changed[:SHOWN_DIFFERENCES])}{more}. "
                    "Give another folder with --out, or remove this one"
                )
        self._repair()
        return load_results(self.results)

    def describe(self, identity, run):
        """Writes what was asked and what is known of the run, all or nothing."""
        text = json.dumps({"identity": {"format": FORMAT, **identity}, "run": run}, indent=1, ensure_ascii=False)
        partial = self.path / "run.json.partial"
        partial.write_text(text + "\n", encoding="utf-8")
        os.replace(partial, self.path / "run.json")

    def append(self, result):
        line = json.dumps(result, ensure_ascii=False, allow_nan=False)
        with self._appending, open(self.results, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _repair(self):
        if not self.results.exists():
            return
        data = self.results.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with open(self.results, "r+b") as file:
                file.truncate(len(whole))

    def close(self):
        if self._lock:
            self._lock.close()
            self._lock = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def load_results(path):
    """The results in a file, in their order; ConfigError names a line that is none."""
    if not Path(path).exists():
        return []
    results = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                break  # of a run that was stopped, or goes on
            try:
                result = json.loads(line)
                result["task"], result["index"], result["method"]
            except (ValueError, KeyError, TypeError):
                raise ConfigError(f"{path}, line {number}: not a result") from None
            results.append(result)
    return results


def load_run(folder):
    """What `describe` wrote."""
    file = Path(folder) / "run.json"
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
        version = described["identity"]["format"]
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{file} is damaged") from None
    if version != FORMAT:
        raise ConfigError(f"{folder} has results of another version ({version}, not {FORMAT}); run it again")
    return described
