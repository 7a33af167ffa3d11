"""What the layers of one engine share: settings, threads, plans, counts. Lives as long as the engine's layers."""

from __future__ import annotations

import contextlib
import importlib
import os
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from vllm.logger import init_logger

from locks_cpp.vllm import LOGGER_NAME, compat, settings
from locks_cpp.vllm.metrics import Metrics
from locks_cpp.vllm.pages import PAGE_TOKENS
from locks_cpp.vllm.refusal import Refusal, refuse_engine
from locks_cpp.vllm.store import SummaryStore

logger = init_logger(LOGGER_NAME)

MAX_PLAN_REQUESTS = 64  # rows of one call; more gain nothing
MAX_WORKSPACE_BYTES = 256 << 20  # a plan for so many rows at the longest context may need more: then fewer rows a call


def engine_of(vllm_config: Any) -> Engine | None:
    layers = vllm_config.compilation_config.static_forward_context
    return next((layer.engine for layer in layers.values() if isinstance(layer, SummaryStore)), None)


def engine_for(vllm_config: Any) -> Engine:
    """The engine of this configuration; made, with all checks, for its first layer."""
    return engine_of(vllm_config) or Engine(vllm_config)


class Engine:
    def __init__(self, vllm_config: Any) -> None:
        try:
            importlib.import_module("locks_cpp._native")
        except ImportError as error:
            raise Refusal(f"the native module of locks_cpp cannot be loaded: {error}") from error
        import locks_cpp

        compat.check_interface()
        refuse_engine(vllm_config)
        self.settings = settings.parse(vllm_config.additional_config[settings.KEY])
        self.max_context_tokens = int(vllm_config.model_config.max_model_len)
        self.max_rows_per_decode = compat.max_rows_per_decode(vllm_config)
        self._max_rows = int(vllm_config.scheduler_config.max_num_seqs) * self.max_rows_per_decode
        threads = self.settings.threads or torch.get_num_threads()
        with threads_on(compat.omp_cpus(dict(os.environ))):
            self.pool = locks_cpp.ThreadPool(threads)
        self._plans: dict[tuple[Any, ...], tuple[Any, int]] = {}
        config = self.settings.config
        self.metrics = Metrics(logger, config.min_context_tokens, self.settings.log_interval_seconds)
        weakref.finalize(self, Metrics.log, self.metrics)
        self._announced = False

    def plan(self, *, query_heads: int, kv_heads: int, head_dim: int, softmax_scale: float) -> tuple[Any, int]:
        """The plan for layers of this shape, shared by them since they run one after another, and its rows a call."""
        import locks_cpp

        key = (query_heads, kv_heads, head_dim, softmax_scale)
        requests = min(self._max_rows, MAX_PLAN_REQUESTS)
        while key not in self._plans:
            plan = locks_cpp.DecodePlan(
                self.settings.config,
                query_heads=query_heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                softmax_scale=softmax_scale,
                max_requests=requests,
                max_context_tokens=self.max_context_tokens,
                pool=self.pool,
            )
            if plan.workspace_bytes <= MAX_WORKSPACE_BYTES or requests == 1:
                self._plans[key] = (plan, requests)
            else:
                requests = max(1, requests // 2)
        return self._plans[key]

    def announce(self, store: SummaryStore, cache_bytes_per_page: int) -> None:
        """The one line that says that LOCKS is active."""
        if self._announced:
            return
        self._announced = True
        config = self.settings.config
        logger.info(
            "LOCKS is active: %d tokens of each context of %d or more are attended, parts of %d, completion of %.0f%% of "
            "the pages; format %s: %d bytes for each %d-token page and layer (%.1f%% more KV cache memory); threads: %d%s",
            config.budget_tokens,
            max(config.min_context_tokens, config.budget_tokens + 1),
            config.part_tokens,
            100 * config.completion_fraction,
            config.format,
            store.page_bytes,
            PAGE_TOKENS,
            100 * store.page_bytes / cache_bytes_per_page,
            self.pool.threads,
            "; debug_check is on: slow" if self.settings.debug_check else "",
        )
        if max(config.min_context_tokens, config.budget_tokens + 1) > self.max_context_tokens:
            logger.warning(
                "LOCKS will attend every context exactly: none can be longer than --max-model-len = %d",
                self.max_context_tokens,
            )


@contextlib.contextmanager
def threads_on(cpus: set[int] | None) -> Iterator[None]:
    """Threads started inside may run on all of `cpus`, although the caller is bound to one of them."""
    if cpus is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:  # not ours to use, for example in a container: stay where we are
        yield
        return
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
