"""What a decode step's kernels take, by stage, on each rank. The functions run in the ranks' own processes, by
LLM.collective_rpc."""

from __future__ import annotations

from typing import Any

STEPS = 10
# By a part of the kernel's name; the first that fits.
STAGES = (
    ("summarize_stage::", "summarize"),
    ("score_kernels::", "score"),
    ("select_kernels::", "select"),
    ("attend_stage::", "attend"),
    ("complete_kernels::", "attend"),
    ("always_kernel", "attend"),
    ("locks::cuda::", "LOCKS, other"),
    ("flash::", "FlashAttention"),
    ("cross_device_reduce", "collective"),
    ("nccl", "collective"),
)
PROFILERS: list[Any] = []


def stage_of(kernel: str) -> str:
    return next((stage for part, stage in STAGES if part in kernel), "the rest")


def start(worker: Any) -> None:
    import torch

    torch.cuda.synchronize()
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    profiler.start()
    PROFILERS.append(profiler)


def stop(worker: Any, steps: int) -> dict[str, float]:
    """Milliseconds a step by stage, and without a kernel."""
    import torch
    from torch.autograd import DeviceType

    torch.cuda.synchronize()
    profiler = PROFILERS.pop()
    profiler.stop()
    kernels = [
        (event.time_range.end, event.time_range.start, event.name)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]
    return {stage: us / 1e3 / steps for stage, us in by_stage(kernels).items()}


def by_stage(kernels: list[tuple[float, float, str]]) -> dict[str, float]:
    """Of kernels' ends and starts. LOCKS's start early and wait for those before them, and some run side by side: each
    counts from where the one that ended before it ended, or from its start if that is later. Between the two is no kernel,
    or one that ends after both."""
    found = {stage: 0.0 for _, stage in STAGES}
    found |= {"the rest": 0.0, "no kernel": 0.0}
    last = None
    for end, start, name in sorted(kernels):
        last = start if last is None else last
        found["no kernel"] += max(0.0, start - last)
        found[stage_of(name)] += max(0.0, end - max(start, last))
        last = max(last, end)
    return found
