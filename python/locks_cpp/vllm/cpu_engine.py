"""The threads and plans of one engine on the CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import locks_cpp
import torch

from locks_cpp.vllm import compat
from locks_cpp.vllm.engine import Engine, engine_of
from locks_cpp.vllm.refusal import Refusal

MAX_PLAN_REQUESTS = 64  # rows of one call; more gain nothing
MAX_WORKSPACE_BYTES = 256 << 20  # a plan for so many rows at the longest context may need more: then fewer rows a call


def engine_for(vllm_config: Any) -> CpuEngine:
    """The engine of this configuration; made, with all checks, for its first layer."""
    engine = engine_of(vllm_config)
    return engine if isinstance(engine, CpuEngine) else CpuEngine(vllm_config)


class CpuEngine(Engine):
    library = locks_cpp
    on_cuda = False

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._max_rows = int(vllm_config.scheduler_config.max_num_seqs) * compat.max_rows_per_decode(vllm_config)
        if self.settings.exact_head_tokens is not None:
            raise Refusal("exact_head_tokens is for CUDA; on the CPU min_context_tokens says what is attended exactly")
        threads = self.settings.threads or torch.get_num_threads()
        with threads_on(compat.omp_cpus(dict(os.environ))):
            self.pool = locks_cpp.ThreadPool(threads)
        self._plans: dict[tuple[Any, ...], tuple[Any, int]] = {}

    def resources(self) -> str:
        return f"threads: {self.pool.threads}"

    def plan(self, *, query_heads: int, kv_heads: int, head_dim: int, softmax_scale: float) -> tuple[Any, int]:
        """The plan for layers of this shape, shared by them since they run one after another, and its rows a call."""
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
