"""Servers with an OpenAI-compatible interface, as a configuration describes them: a table `endpoint` for what methods have
in common, and a method for each server that is compared."""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from dataclasses import dataclass, field

from checks import KINDS, ConfigError, between, check

KEYS = {
    "url": str,
    "model": str,
    "chat": bool,
    "key_env": str,
    "timeout": float,
    "retries": int,
    "requests": int,
    "extra": dict,
}
OWN_FIELDS = ("model", "prompt", "messages", "max_tokens", "temperature", "top_p", "seed", "stream", "n")


@dataclass(frozen=True)
class Endpoint:
    url: str  # what /completions is put behind, as http://localhost:8000/v1
    model: str = ""  # empty: the only one that the server has
    chat: bool = False  # /chat/completions, but for samples that go without a chat template
    key_env: str = ""  # the environment variable that holds the key
    timeout: float = 600  # seconds that a request may take
    retries: int = 5  # after the first try
    requests: int = 4  # at a time
    extra: dict = field(default_factory=dict)  # sent with every request, as it is

    def identity(self):
        """What results depend on. A server may move to another address; who serves under a method's name is the user's."""
        return {"model": self.model, "chat": self.chat, **({"extra": self.extra} if self.extra else {})}

    def key(self):
        return os.environ[self.key_env].strip() if self.key_env else ""


def parse(common, methods):
    """An Endpoint for each method; its own settings win over the common ones."""
    _check_table(common, "endpoint: ")
    made = {}
    for name, table in methods.items():
        where = f"method {name!r}: "
        _check_table(table, where)
        settings = {**common, **table}
        if not settings.get("url"):
            raise ConfigError(f"{where}url is missing; write it there, or in [endpoint] for all methods")
        made[name] = Endpoint(**{**settings, "url": _checked_url(settings["url"], where)})
        _check_key(made[name].key_env, where)
    return made


def _check_table(table, where):
    if not isinstance(table, dict):
        raise ConfigError(f"{where}expected a table of settings, got {KINDS.get(type(table), 'something else')}")
    for key, value in table.items():
        check(key, value, KEYS, where)
    between(table, "timeout", 0.1, 86400, where)
    between(table, "retries", 0, 100, where)
    between(table, "requests", 1, 1024, where)
    try:
        json.dumps(table.get("extra", {}), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}extra cannot be sent as JSON: {error}") from error
    own = next((key for key in table.get("extra", {}) if key in OWN_FIELDS), None)
    if own:
        raise ConfigError(f"{where}extra has {own!r}, which the evaluation sets itself")


def _checked_url(url, where):
    try:
        parts = urllib.parse.urlsplit(url)
        parts.port  # noqa: B018 - raises where it is no number
    except ValueError as error:
        # Neither the error nor its cause is to say what may be a secret.
        what = f"{url!r}: {error}" if _can_be_shown(url) else "not as http://localhost:8000/v1"
        raise ConfigError(f"{where}url is {what}") from None
    if parts.username is not None:
        raise ConfigError(
            f"{where}url holds a name or a password; put a key into an environment variable and name it in key_env"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        what = repr(url) if _can_be_shown(url) else "none that can be used"
        raise ConfigError(f"{where}url is {what}; expected one as http://localhost:8000/v1, without a query")
    return url.rstrip("/")


def _can_be_shown(url):
    """What stands before @ or behind ? may be a secret."""
    return not set("@?#") & set(url)


def _check_key(variable, where):
    if not variable:
        return
    key = os.environ.get(variable, "").strip()
    if not key and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        # It may be the key itself.
        raise ConfigError(f"{where}key_env is no name of an environment variable; put the key into one and name that")
    if not key:
        raise ConfigError(f"{where}the environment variable {variable}, which key_env names, is not set")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"{where}the environment variable {variable} holds letters that no key has")
