"""locks_cpp.cuda over torch tensors, without vLLM: against the CPU, against torch, and in a CUDA graph."""

import sys

import numpy as np
import torch

import locks_cpp
from locks_cpp import cuda

PAGE = locks_cpp.PAGE_TOKENS
HEADS, KV_HEADS, DIM = 8, 2, 128
PAGES, CONTEXTS = 1024, (9000, 700, 0, 4123)
SCALE = DIM**-0.5


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def check(name: str, fits: bool, figures: str = "") -> bool:
    print(f"kernels: {'ok  ' if fits else 'FAIL'} {name}{': ' if figures else ''}{figures}", flush=True)
    return bool(fits)


class Case:
    """Several requests of different lengths, pages in any order, keys and values side by side as vLLM keeps them."""

    def __init__(self, config: locks_cpp.Config, fp8: bool = False) -> None:
        draw = torch.Generator(device="cuda").manual_seed(5)
        # Neighbours are alike, so that pages have something to summarise.
        steps = torch.randn((PAGES, PAGE, KV_HEADS, 2 * DIM), generator=draw, device="cuda")
        self.cache = (steps.cumsum(1) / 3).to(torch.bfloat16)
        self.keys, self.values = self.plain = self.cache[..., :DIM], self.cache[..., DIM:]
        self.scales = {}
        if fp8:
            self.scales = {
                "key_scale": torch.full((1,), 0.07, device="cuda"),
                "value_scale": torch.full((1,), 0.02, device="cuda"),
            }
            self.keys, self.values = (
                self.quantised(part, scale) for part, scale in zip(self.plain, self.scales.values(), strict=True)
            )
            self.plain = tuple(
                part.view(torch.float8_e4m3fn).float() * scale
                for part, scale in zip((self.keys, self.values), self.scales.values(), strict=True)
            )
        order = torch.randperm(PAGES, generator=draw, device="cuda").int()
        self.tables = torch.zeros((len(CONTEXTS), 640), dtype=torch.int32, device="cuda")
        first = 0
        for request, context in enumerate(CONTEXTS):
            pages = -(-context // PAGE)
            self.tables[request, :pages] = order[first : first + pages]
            first += pages
        self.contexts = torch.tensor(CONTEXTS, dtype=torch.int32, device="cuda")
        self.queries = torch.randn((len(CONTEXTS), HEADS, DIM), generator=draw, device="cuda")
        self.config = config
        shape = {"format": config.format, "head_dim": DIM, "kv_heads": KV_HEADS, "values": config.keeps_values}
        self.row_bytes = cuda.page_bytes(**shape)
        self.memory = torch.zeros((PAGES, self.row_bytes), dtype=torch.uint8, device="cuda")
        self.summaries = cuda.Summaries(self.memory, **shape)
        self.cpu_memory = np.zeros((PAGES, locks_cpp.page_bytes(**shape)), np.uint8)
        self.cpu_summaries = locks_cpp.Summaries(self.cpu_memory, **shape)
        self.plan_shape = {
            "query_heads": HEADS,
            "kv_heads": KV_HEADS,
            "head_dim": DIM,
            "softmax_scale": SCALE,
            "max_requests": len(CONTEXTS),
            "max_context_tokens": 640 * PAGE,
        }
        self.plan = cuda.DecodePlan(config, **self.plan_shape)
        self.workspace = torch.empty(self.plan.workspace_bytes, dtype=torch.uint8, device="cuda")
        self.reports = torch.zeros((len(CONTEXTS), cuda.REPORT_BYTES), dtype=torch.uint8, device="cuda")
        self.out = torch.full((len(CONTEXTS), HEADS, DIM), torch.nan, device="cuda")

    @staticmethod
    def quantised(part: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """[pages, 16, heads, dim] in e4m3, as bytes; rows of 256 bytes, the second half of which is somebody else's."""
        cache = torch.zeros((PAGES, PAGE, KV_HEADS, 2 * DIM), dtype=torch.uint8, device="cuda")[..., :DIM]
        rows, out = part.reshape(-1, KV_HEADS, DIM), cache.view(-1, KV_HEADS, DIM)
        cuda.copy_rows(rows, out, scale=scale, stream=stream())
        return cache

    def run(self, out: torch.Tensor | None = None) -> torch.Tensor:
        out = self.out if out is None else out
        self.plan.run(
            self.queries,
            self.keys,
            self.values,
            self.summaries,
            self.tables,
            self.contexts,
            out,
            **self.scales,
            workspace=self.workspace,
            reports=self.reports,
            stream=stream(),
        )
        return out

    def summarize(self) -> None:
        pages = torch.arange(PAGES, dtype=torch.int32, device="cuda")
        cuda.summarize(self.keys, self.values, pages, self.summaries, **self.scales, stream=stream())

    def on_cpu(self) -> tuple[np.ndarray, locks_cpp.DecodeReport]:
        keys, values = (part.contiguous().cpu() for part in self.plain)
        locks_cpp.summarize(keys, values, np.arange(PAGES, dtype=np.int32), self.cpu_summaries)
        plan = locks_cpp.DecodePlan(self.config, **self.plan_shape)
        real = [request for request, context in enumerate(CONTEXTS) if context]
        out = np.zeros((len(real), HEADS, DIM), np.float32)
        queries, tables = self.queries[real].cpu().numpy(), self.tables[real].cpu().numpy()
        report = plan.run(queries, keys, values, self.cpu_summaries, tables, np.array(CONTEXTS, np.int32)[real], out)
        whole = np.zeros((len(CONTEXTS), HEADS, DIM), np.float32)
        whole[real] = out
        return whole, report

    def by_torch(self) -> torch.Tensor:
        out = torch.zeros_like(self.queries)
        for request, context in enumerate(CONTEXTS):
            if context:
                pages = self.tables[request, : -(-context // PAGE)].long()
                keys, values = (
                    part[pages].reshape(-1, KV_HEADS, DIM)[:context].float().repeat_interleave(HEADS // KV_HEADS, 1)
                    for part in self.plain
                )
                weights = torch.einsum("hd,thd->ht", self.queries[request], keys).mul(SCALE).softmax(-1)
                out[request] = torch.einsum("ht,thd->hd", weights, values)
        return out


def main() -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    print("kernels: on", cuda.current_device())
    passed = []

    sparse = Case(locks_cpp.Config(budget_tokens=512, min_context_tokens=1024))
    sparse.summarize()
    bulk = sparse.memory.clone()
    sparse.memory.zero_()
    slots = torch.arange(PAGES * PAGE, dtype=torch.int64, device="cuda")
    slots[::7] = -1  # padding between
    filled = ((slots >= 0) & (slots % PAGE == PAGE - 1)).view(PAGES, PAGE)[:, -1]
    cuda.summarize_filled(sparse.keys, sparse.values, slots, sparse.summaries, stream=stream())
    passed.append(
        check(
            "summaries from slots are those made in bulk, of the filled pages only",
            torch.equal(sparse.memory[filled], bulk[filled]) and not sparse.memory[~filled].any(),
            f"{int(filled.sum())} of {PAGES} pages, {sparse.row_bytes} bytes each",
        )
    )
    sparse.summarize()
    out = sparse.run().clone()
    expected, cpu_report = sparse.on_cpu()
    dense = sparse.by_torch()
    report = locks_cpp.DecodeReport.read(sparse.reports.cpu().numpy())
    error = (out.cpu() - torch.from_numpy(expected)).norm() / dense.cpu().norm()
    passed.append(check("a sparse step is the CPU's", error < 0.02, f"relative difference {error:.1e}"))
    against = (out - dense)[0].norm() / dense[0].norm()
    passed.append(
        check(
            "... and what it says of itself",
            np.allclose(report.attended_tokens[report.context_tokens > 0], cpu_report.attended_tokens)
            and np.allclose(report.coverage[report.context_tokens > 0], cpu_report.coverage, atol=0.02),
            f"attended {report.attended_tokens.tolist()}, coverage {report.coverage.round(3).tolist()}, "
            f"{against:.3f} from dense at {CONTEXTS[0]} tokens",
        )
    )
    passed.append(check("no tokens, zeros", not out[2].any()))

    everything = Case(locks_cpp.Config(budget_tokens=640 * PAGE))
    exact = everything.run()
    error = (exact - dense).abs().max()
    passed.append(check("a budget of everything is torch's attention", error < 2e-3, f"{error:.1e}"))
    need = cuda.attend_workspace_bytes(query_heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, requests=len(CONTEXTS))
    attended = torch.empty_like(exact)
    cuda.attend(
        everything.queries,
        everything.keys,
        everything.values,
        everything.tables,
        everything.contexts,
        attended,
        softmax_scale=SCALE,
        workspace=torch.empty(need, dtype=torch.uint8, device="cuda"),
        stream=stream(),
    )
    passed.append(check("attend() is too", (attended - dense).abs().max() < 2e-3))

    for fp8 in (
        Case(locks_cpp.Config(budget_tokens=640 * PAGE), fp8=True),
        Case(locks_cpp.Config(budget_tokens=512, min_context_tokens=1024), fp8=True),
    ):
        fp8.summarize()
        out, dense = fp8.run().clone(), fp8.by_torch()
        if fp8.config.budget_tokens > max(CONTEXTS):
            error = (out - dense).abs().max()
            passed.append(check("fp8: a budget of everything is torch's attention", error < 2e-3, f"{error:.1e}"))
            continue
        expected, _ = fp8.on_cpu()
        error = (out.cpu() - torch.from_numpy(expected)).norm() / dense.cpu().norm()
        passed.append(check("fp8: a sparse step is the CPU's of the same numbers", error < 0.02, f"{error:.1e}"))
        rounded = (fp8.cache[..., :DIM].float() / fp8.scales["key_scale"]).clamp(-448, 448).to(torch.float8_e4m3fn)
        passed.append(check("fp8: rows are rounded as torch rounds", torch.equal(rounded.view(torch.uint8), fp8.keys)))

    wide = torch.randn((5, HEADS + 2, DIM), device="cuda").to(torch.bfloat16)
    back = torch.zeros_like(wide)
    between = torch.empty((3, HEADS, DIM), device="cuda")
    cuda.copy_rows(wide[::2, 1:-1], between, stream=stream())
    cuda.copy_rows(between, back[::2, 1:-1], stream=stream())
    expected = torch.zeros_like(wide)
    expected[::2, 1:-1] = wide[::2, 1:-1]
    passed.append(check("rows of any strides are copied and converted", torch.equal(back, expected)))

    for dtype in (torch.float16, torch.bfloat16):
        floats, narrow = sparse.run().clone(), sparse.out.to(dtype)
        narrow.fill_(torch.nan)
        sparse.run(narrow)
        passed.append(check(f"outputs in {dtype} are those of floats, rounded", torch.equal(narrow, floats.to(dtype))))

    shorter = sparse.contexts - torch.tensor([1000, 100, 0, 3000], dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cuda.summarize_filled(sparse.keys, sparse.values, slots, sparse.summaries, stream=stream())
        sparse.run()
    sparse.contexts.copy_(shorter)
    sparse.out.fill_(torch.nan)
    graph.replay()
    replayed = sparse.out.clone()
    sparse.out.fill_(torch.nan)
    passed.append(
        check("a graph replayed with other lengths has the bits of a plain step", torch.equal(replayed, sparse.run()))
    )

    try:
        sparse.plan.run(
            sparse.queries.cpu(), sparse.keys, sparse.values, sparse.summaries, sparse.tables, sparse.contexts, sparse.out,
            workspace=sparse.workspace, stream=stream(),
        )  # fmt: skip
        said = "nothing"
    except ValueError as error_:
        said = str(error_)
    passed.append(check("a tensor on the CPU is refused by name", said.startswith("queries: ") and "CUDA" in said, said))
    torch.cuda.synchronize()
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
