"""Which pages a step fills, and how its rows divide. NumPy only; page tables here have one entry per 16-token page."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

PAGE_TOKENS = 16

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


def written_slots(slot_mapping: npt.NDArray[np.integer]) -> tuple[Int64s, Int64s | None]:
    """The slots that a step writes, and the rows that go there (None: all rows, in order). Padding is -1."""
    slots = slot_mapping.astype(np.int64, copy=False)
    if slots.size == 0 or slots.min() >= 0:
        return slots, None
    rows = np.flatnonzero(slots >= 0)
    return slots[rows], rows


def completed_pages(slots: Int64s) -> Int32s:
    """The pages whose last slot is among those written, ascending, each once.

    vLLM says nothing when it frees a block or gives it to another request. It need not: a page is read through its summary
    only while all of its 16 tokens lie before the query, and for that its owner has written its last slot after all the
    others (or rewritten it, when speculated tokens were rejected), and each time that slot is written the summary is made
    anew.
    """
    last = slots[slots % PAGE_TOKENS == PAGE_TOKENS - 1]
    return np.unique(last // PAGE_TOKENS).astype(np.int32)


@dataclass
class Division:
    """Which rows of a step decode. Requests are numbered as in the batch, in which some at the end may have no rows."""

    decodes: npt.NDArray[np.bool_]  # [requests]
    decode_rows: Int64s  # [decode rows], ascending
    decode_owners: Int64s  # [decode rows]: their requests
    tokens_after: Int32s  # [decode rows]: tokens of the request that the row does not see
    decode_contexts: Int64s  # [decode rows]: tokens that it sees
    first_prompt: int | None  # the first request whose rows are of a prompt
    prompt_rows: int
    rows_each: int  # of every request that has any, these being the first; 0 if they differ


def divide_rows(
    row_starts: npt.NDArray[np.integer],
    context_tokens: npt.NDArray[np.integer],
    is_prefilling: npt.NDArray[np.bool_] | None,
    max_decode_rows: int,
) -> Division:
    """row_starts [requests + 1]; context_tokens [requests], those of this step included.

    Rows of a prompt are attended exactly, however few of them a chunk or a prefix hit leaves: what a prompt gives then does
    not depend on how it was cut. If it is not said which requests are in their prompt, those with more
    than `max_decode_rows` rows are.
    """
    starts = row_starts.astype(np.int64, copy=False)
    counts = np.diff(starts)
    contexts = context_tokens.astype(np.int64, copy=False)[: counts.size]
    decodes = (counts > 0) & (counts <= max_decode_rows)
    if is_prefilling is None:
        decodes &= contexts > counts
    else:
        known = is_prefilling[: counts.size]  # padding may be left out
        decodes[: known.size] &= ~known
    requests = np.flatnonzero(decodes)
    lengths = counts[requests]
    owners = np.repeat(requests, lengths)
    row_in_request = np.arange(owners.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # Row i of a request's n rows sees all but the n - 1 - i tokens after it.
    after = counts[owners] - 1 - row_in_request
    prompts = np.flatnonzero((counts > 0) & ~decodes)
    used = np.flatnonzero(counts)
    alike = used.size > 0 and used[-1] == used.size - 1 and bool((counts[used] == counts[0]).all())
    return Division(
        decodes=decodes,
        decode_rows=starts[owners] + row_in_request,
        decode_owners=owners,
        tokens_after=after.astype(np.int32),
        decode_contexts=contexts[owners] - after,
        first_prompt=int(prompts[0]) if prompts.size else None,
        prompt_rows=int(counts[prompts].sum()),
        rows_each=int(counts[0]) if alike else 0,
    )


@dataclass
class PrefillRows:
    """Rows [first, last) of the step belong to one request."""

    first: int
    last: int
    pages: Int32s  # the request's pages, in order
    visible_tokens: Int32s  # [rows]


@dataclass
class StepRows:
    """The rows of one step. A decode row is a request of its own to the library, with its own causal limit."""

    decode_rows: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))  # [decode rows], ascending
    decode_tables: Int32s = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # [decode rows, pages]
    decode_context: Int32s = field(default_factory=lambda: np.zeros(0, np.int32))  # [decode rows]
    prefills: list[PrefillRows] = field(default_factory=list)


def split_rows(
    row_starts: npt.NDArray[np.integer],
    context_tokens: npt.NDArray[np.integer],
    page_tables: Int32s,
    is_prefilling: npt.NDArray[np.bool_] | None,
    max_decode_rows: int,
) -> StepRows:
    """Divides a step's rows.

    row_starts [requests + 1]; context_tokens [requests], those of this step included; page_tables [requests, pages].
    What decodes is for divide_rows to say.
    """
    starts = row_starts.astype(np.int64, copy=False)
    counts = np.diff(starts)
    division = divide_rows(row_starts, context_tokens, is_prefilling, max_decode_rows)
    out = StepRows()
    if division.decode_rows.size:
        out.decode_rows = division.decode_rows
        out.decode_context = division.decode_contexts.astype(np.int32)
        used = -(-int(out.decode_context.max()) // PAGE_TOKENS)
        out.decode_tables = page_tables[division.decode_owners, :used].astype(np.int32, copy=False)
    for request in np.flatnonzero((counts > 0) & ~division.decodes):
        context, rows = int(context_tokens[request]), int(counts[request])
        out.prefills.append(
            PrefillRows(
                first=int(starts[request]),
                last=int(starts[request + 1]),
                pages=np.ascontiguousarray(page_tables[request, : -(-context // PAGE_TOKENS)], dtype=np.int32),
                visible_tokens=np.arange(context - rows + 1, context + 1, dtype=np.int32),
            )
        )
    return out
