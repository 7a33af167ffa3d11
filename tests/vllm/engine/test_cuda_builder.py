"""How a step is divided on CUDA, from vLLM's own metadata; played on the CPU, where FlashAttention cannot run."""

from types import SimpleNamespace

import pytest
import torch
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder

import locks_cpp
from locks_cpp.vllm.cuda_builder import CudaStepMetadataBuilder
from locks_cpp.vllm.cuda_check import filled_pages
from locks_cpp.vllm.metrics import Metrics
from locks_cpp.vllm.settings import Settings

CONFIG = locks_cpp.Config()


class NoSamples:
    def __init__(self):
        self.rows = []

    def read(self):
        return None

    def take(self, rows):
        self.rows.append(rows)


@pytest.fixture
def builder(monkeypatch):
    monkeypatch.setattr(FlashAttentionMetadataBuilder, "__init__", lambda *args: None)
    monkeypatch.setattr(FlashAttentionMetadataBuilder, "build", lambda self, prefix, common: common)
    engine = SimpleNamespace(
        settings=Settings(CONFIG),
        max_context_tokens=100,
        max_rows=8 * 3,
        metrics=Metrics(None, CONFIG.min_context_tokens, 0),
        samples=NoSamples(),
        serves=True,
    )
    layer = SimpleNamespace(impl=SimpleNamespace(store=SimpleNamespace(engine=engine), num_heads=8, num_kv_heads=2))
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context={"a": layer, "b": layer}),
        speculative_config=SimpleNamespace(num_speculative_tokens=2),
    )
    return CudaStepMetadataBuilder(None, ["a", "b"], config, torch.device("cpu"))


def step(counts, contexts, prefilling, padded_requests=0, padded_tokens=0):
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    starts = torch.cat([starts, starts[-1:].expand(padded_requests)])
    requests, tokens = len(counts) + padded_requests, sum(counts) + padded_tokens
    lengths = torch.tensor(contexts + [0] * padded_requests, dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.clone(),
        seq_lens=lengths,
        num_reqs=requests,
        num_actual_tokens=tokens,
        max_query_len=max(counts),
        max_seq_len=100,
        block_table_tensor=(10 * torch.arange(requests)[:, None] + torch.arange(9)).int(),
        slot_mapping=torch.arange(tokens),
        is_prefilling=torch.tensor(prefilling),
        seq_lens_cpu_upper_bound=lengths.clone(),
    )


def rows_of(metadata):
    """{row: (its table's first entry, its context)}, and all tables as wide as they may be."""
    found = {}
    for decode in metadata.decodes:
        numbers = torch.arange(1000)[decode.rows].tolist()
        assert len(numbers) == decode.tables.shape[0] == decode.contexts.shape[0] and decode.contexts.is_contiguous()
        for first in range(0, len(numbers), 2):  # in calls of two rows
            call = slice(first, min(first + 2, len(numbers)))
            assert torch.arange(1000)[decode.rows_of(call)].tolist() == numbers[call]
        found |= {
            row: (int(table[0]), int(context))
            for row, table, context in zip(numbers, decode.tables, decode.contexts, strict=True)
        }
    return found


def test_what_vllm_tries_before_the_first_prompt_is_not_counted(builder):
    builder._engine.serves = False
    counts = builder._engine.metrics.counts
    before = dict(counts)
    builder.build(0, step([1, 1], [30, 99], [False, False]))
    assert dict(counts) == before and builder._engine.samples.rows == []
    builder.build(0, step([14], [14], [True]))
    builder.build(0, step([1, 1], [30, 99], [False, False]))
    assert counts["rows_prompt"] == 2 * 14 and counts["rows_dense_short"] == 2 * 2


def test_a_captured_step_is_one_of_decodes_whatever_it_says(builder):
    common = step([1, 1], [1, 1], [False, False])
    common.is_prefilling = None  # then rows that see themselves alone look like prompts
    captured = builder.build_for_cudagraph_capture(common)
    assert captured.prompts is None and rows_of(captured).keys() == {0, 1}
    with pytest.raises(RuntimeError, match="graph of requests with 1 to 3 rows each .* 2 requests and 5 rows"):
        builder.build_for_cudagraph_capture(step([1, 4], [1, 4], [False, False]))


def test_it_lets_graphs_hold_decode_steps_only(builder):
    assert builder.get_cudagraph_support(None, None) is AttentionCGSupport.UNIFORM_BATCH


def test_a_row_each_reads_what_vllm_keeps(builder):
    """A graph reads the same addresses at its replay: no copies."""
    common = step([1, 1], [30, 99], [False, False], padded_requests=2, padded_tokens=2)
    metadata = builder.build(0, common)
    assert metadata.prompts is None
    (decode,) = metadata.decodes
    assert decode.rows == slice(0, 4) and decode.tables.shape == (4, 7)
    assert decode.tables.data_ptr() == common.block_table_tensor.data_ptr()
    assert decode.contexts.data_ptr() == common.seq_lens.data_ptr()
    assert builder._engine.metrics.counts["rows_dense_short"] == 2 * 2
    builder.build(0, common)
    assert builder._engine.samples.rows == [0, 4]


@pytest.mark.parametrize(("requests", "padded"), [(1, 0), (2, 0), (2, 3)])
def test_speculated_rows_see_what_is_before_them(builder, requests, padded):
    common = step([3] * requests, [50, 40][:requests], [False] * requests, padded, 3 * padded)
    metadata = builder.build(0, common)
    expected = {0: (0, 48), 1: (0, 49), 2: (0, 50), 3: (10, 38), 4: (10, 39), 5: (10, 40)}
    found = rows_of(metadata)
    assert len(found) == 3 * (requests + padded)
    assert {row: found[row] for row in range(3 * requests)} == {row: expected[row] for row in range(3 * requests)}
    assert all(context == 0 for row, (_, context) in found.items() if row >= 3 * requests)
    # The graph of this shape reads the same addresses in a later step.
    later = builder.build(0, step([3] * requests, [70, 80][:requests], [False] * requests, padded, 3 * padded))
    assert [one.contexts.data_ptr() for one in metadata.decodes] == [one.contexts.data_ptr() for one in later.decodes]
    assert rows_of(metadata)[2] == (0, 70)


def test_a_graph_gets_its_lengths_also_where_a_prompt_ends(builder):
    """vLLM replays a decode graph for a last chunk of a prompt that is as long as a decode."""
    captured = builder.build_for_cudagraph_capture(step([3, 3], [3, 3], [False, False]))
    builder.build(0, step([3, 3], [50, 40], [True, False]))
    assert rows_of(captured)[0] == (0, 48) and rows_of(captured)[5] == (10, 40)


def test_prompts_behind_decodes_go_to_flash_attention(builder):
    metadata = builder.build(0, step([1, 1, 5, 9], [30, 99, 25, 9], [False, False, True, True], padded_tokens=4))
    assert rows_of(metadata) == {0: (0, 30), 1: (10, 99)}
    assert metadata.prompts.first_row == 2
    common = metadata.prompts.metadata
    assert common.query_start_loc.tolist() == common.query_start_loc_cpu.tolist() == [0, 5, 14]
    assert (common.num_reqs, common.num_actual_tokens, common.max_query_len) == (2, 14, 9)
    assert common.seq_lens.tolist() == [25, 9] and common.block_table_tensor[:, 0].tolist() == [20, 30]
    assert common.slot_mapping[:14].tolist() == list(range(2, 16)) and common.is_prefilling.tolist() == [True, True]
    assert builder._engine.metrics.counts["rows_prompt"] == 2 * 14


def test_decodes_among_prompts_are_no_work_for_flash_attention(builder):
    metadata = builder.build(0, step([3, 1, 2, 7], [60, 40, 50, 7], [False, True, False, True]))
    assert rows_of(metadata) == {0: (0, 58), 1: (0, 59), 2: (0, 60), 4: (20, 49), 5: (20, 50)}
    assert metadata.prompts.first_row == 3
    assert metadata.prompts.metadata.seq_lens.tolist() == [40, 0, 7]


def test_decodes_of_different_lengths(builder):
    metadata = builder.build(0, step([3, 1], [60, 40], [False, False]))
    assert metadata.prompts is None
    assert rows_of(metadata) == {0: (0, 58), 1: (0, 59), 2: (0, 60), 3: (10, 40)}
    assert metadata.decodes[0].tables.shape == (4, 4)  # no wider than the longest needs


def test_only_prompts(builder):
    metadata = builder.build(0, step([5, 9], [5, 20], [True, True]))
    assert metadata.decodes == [] and metadata.prompts.first_row == 0 and metadata.prompts.metadata.num_reqs == 2


def test_attention_that_is_not_causal_is_no_silent_mistake(builder):
    common = step([1], [30], [False])
    common.causal = False
    with pytest.raises(NotImplementedError):
        builder.build(0, common)


def test_summaries_are_checked_of_pages_that_were_filled_before_the_step():
    """Two prompts with a common beginning, the second of which has found blocks that the first fills in this step."""
    common = step([20, 3], [40, 43], [True, True])
    common.block_table_tensor[1, :2] = common.block_table_tensor[0, :2]
    common.slot_mapping = torch.tensor([*range(20, 32), *range(32, 40), *range(16 * 12 + 8, 16 * 12 + 11), -1])
    assert filled_pages(common).tolist() == [0]  # of 0 and 1, of which the step fills the second
    common.slot_mapping = torch.tensor([-1] * 23)
    assert filled_pages(common).tolist() == [0, 1]
