"""What the layers of one engine share on CUDA: plans, the memory that they work in, and samples of what they report."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from locks_cpp import DecodeReport, cuda
from locks_cpp.vllm import compat
from locks_cpp.vllm.engine import Engine, engine_of
from locks_cpp.vllm.pages import PAGE_TOKENS
from locks_cpp.vllm.refusal import Refusal

# Rows of one call; more rows take several calls. A longest context of 128K tokens takes some 3 MB of workspace a row.
MAX_PLAN_REQUESTS = 256
MAX_WORKSPACE_BYTES = 512 << 20
REPORTING_LAYERS = 8  # one layer of so many reports: a report costs a launch
SAMPLE_SECONDS = 0.1


def engine_for(vllm_config: Any) -> CudaEngine:
    """The engine of this configuration; made, with all checks, for its first layer."""
    engine = engine_of(vllm_config)
    return engine if isinstance(engine, CudaEngine) else CudaEngine(vllm_config)


@dataclass
class Workplace:
    """For layers of one shape, which run one after another on one stream. Its addresses are in CUDA graphs: it stays."""

    make_plan: Callable[[int], Any]  # for what is to be attended exactly
    rows: int  # of one call
    workspace: torch.Tensor
    queries: torch.Tensor  # float32 [rows, query_heads, head_dim], which is what the library reads
    out: torch.Tensor  # the same, of rows that do not lie side by side in the engine's tensor
    plans: dict[int, Any] = field(default_factory=dict)  # one workspace is enough for each

    def plan(self, min_context_tokens: int) -> Any:
        if min_context_tokens not in self.plans:
            self.plans[min_context_tokens] = self.make_plan(min_context_tokens)
        return self.plans[min_context_tokens]


class CudaEngine(Engine):
    library = cuda
    on_cuda = True

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        if self.settings.threads is not None:
            raise Refusal("threads is for the CPU; on CUDA there are none to set")
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.max_rows = int(vllm_config.scheduler_config.max_num_seqs) * compat.rows_per_decode(vllm_config)
        # The pages that a decode step fills are among its recent tokens, all of which it attends: it reads no summary of
        # theirs. A graph may make them meanwhile, unless the setting says that almost nothing is recent.
        recent = self.settings.config.recent_tokens
        reads_none = recent >= PAGE_TOKENS + compat.rows_per_decode(vllm_config)
        self.beside = torch.cuda.Stream(self.device) if reads_none else None
        self._workplaces: dict[tuple[Any, ...], Workplace] = {}
        self.samples = Samples(self.max_rows, self.device)
        self.serves = False  # a prompt has been seen

    def workplace(self, *, query_heads: int, kv_heads: int, head_dim: int, softmax_scale: float) -> Workplace:
        """Made with the first layer of a shape, so that vLLM counts it with the weights."""
        key = (query_heads, kv_heads, head_dim, softmax_scale)
        if key not in self._workplaces:
            rows = min(self.max_rows, MAX_PLAN_REQUESTS)

            def make_plan(min_context_tokens: int) -> Any:
                return cuda.DecodePlan(
                    dataclasses.replace(self.settings.config, min_context_tokens=min_context_tokens),
                    query_heads=query_heads,
                    kv_heads=kv_heads,
                    head_dim=head_dim,
                    softmax_scale=softmax_scale,
                    max_requests=rows,
                    max_context_tokens=self.max_context_tokens,
                )

            while True:
                plan = make_plan(self.settings.config.min_context_tokens)
                if plan.workspace_bytes <= MAX_WORKSPACE_BYTES or rows == 1:
                    break
                rows = max(1, rows // 2)
            shape = (rows, query_heads, head_dim)
            queries, out = (torch.empty(shape, dtype=torch.float32, device=self.device) for _ in range(2))
            workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=self.device)
            self._workplaces[key] = Workplace(make_plan, rows, workspace, queries, out)
        return self._workplaces[key]

    def resources(self) -> str:
        used = sum(place.workspace.nbytes + place.queries.nbytes + place.out.nbytes for place in self._workplaces.values())
        given = self.settings.exact_on_cuda
        exact = f"contexts of up to {given} tokens / (rows x KV heads) exact; " if given else ""
        return f"{exact}workspace: {used / 2**20:.0f} MB on {cuda.current_device().name}"


class Samples:
    """Reports of some layers, read now and then without waiting for the device."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows = rows
        self._device = device
        self._layers: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._copied: Any = None  # an event: after it, the copies are there
        self._next = 0.0

    def buffer(self, layer: int) -> torch.Tensor | None:
        """Where a layer writes its reports, uint8 [rows, REPORT_BYTES]; None if it is none that reports."""
        if layer % REPORTING_LAYERS:
            return None
        self._layers.append(torch.zeros((self._rows, cuda.REPORT_BYTES), dtype=torch.uint8, device=self._device))
        return self._layers[-1]

    def take(self, rows: int) -> None:
        """Queues a copy of what the last step wrote for its rows, if it is time for one and the one before is read."""
        now = time.monotonic()
        if rows == 0 or self._copied is not None or now < self._next or torch.cuda.is_current_stream_capturing():
            return
        self._next = now + SAMPLE_SECONDS
        self._copies = [
            torch.empty((min(rows, self._rows), cuda.REPORT_BYTES), dtype=torch.uint8, pin_memory=True) for _ in self._layers
        ]
        for copy, layer in zip(self._copies, self._layers, strict=True):
            copy.copy_(layer[: copy.shape[0]], non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def read(self) -> DecodeReport | None:
        if self._copied is None or not self._copied.query():
            return None
        self._copied = None
        report = DecodeReport.read(np.concatenate([copy.numpy() for copy in self._copies]))
        real = report.context_tokens > 0  # the others pad the batch
        return DecodeReport(*(getattr(report, name)[real] for name in DecodeReport.__dataclass_fields__))
