"""Which pages a step completes, and how its rows divide, from slot mappings as vLLM makes them."""

import numpy as np
import pytest

pytest.importorskip("locks_cpp", reason="the native module of locks_cpp is not built")

from locks_cpp.vllm.pages import completed_pages, divide_rows, split_rows, written_slots


def completed(slots):
    return completed_pages(written_slots(np.asarray(slots, np.int64))[0]).tolist()


@pytest.mark.parametrize(
    ("slots", "pages"),
    [
        ([], []),
        ([-1, -1], []),  # a profiling run
        (range(14), []),
        ([15], [0]),
        (range(160, 192), [10, 11]),
        ([-1, 47, -1, 31], [1, 2]),  # padding in between, pages in any order
        ([31, 31, 31], [1]),
        ([*range(96, 112), *range(32, 40)], [6]),  # a request's pages need not ascend; its last one stays open
        ([78, 79, 64], [4]),  # slot 15 written, then the page begun again: its new owner will write slot 15 last
    ],
)
def test_completed_pages(slots, pages):
    assert completed(slots) == pages


def test_padding_says_which_rows_are_written():
    slots, rows = written_slots(np.array([5, -1, 9, -1], np.int32))
    assert slots.tolist() == [5, 9] and rows.tolist() == [0, 2]
    slots, rows = written_slots(np.array([5, 9]))
    assert slots.tolist() == [5, 9] and rows is None


@pytest.mark.parametrize("seed", range(20))
def test_every_page_of_every_owner_is_completed_after_its_last_key(seed):
    """Blocks change owner, chunks have odd sizes, speculated tokens are written and written again: whenever a request may
    read a page through its summary, the summary is later than every key in the page."""
    draw = np.random.default_rng(seed)
    num_pages, clock = 12, 0
    key_written = np.full(num_pages * 16, -1)
    summary_made = np.full(num_pages, -1)
    free = list(draw.permutation(num_pages))
    requests = []  # [pages, tokens kept]
    for _ in range(300):
        if len(requests) < 3 and len(free) >= 4 and draw.random() < 0.3:
            requests.append([[free.pop() for _ in range(4)], 0])
        step = []
        for request in list(requests):
            pages, tokens = request
            left = 64 - tokens
            if left == 0 or draw.random() < 0.03:  # done, or preempted: the pages go to others as they are
                requests.remove(request)
                free += pages
                draw.shuffle(free)
                continue
            count = min(left, int(draw.integers(1, 23)))
            step += [pages[t // 16] * 16 + t % 16 for t in range(tokens, tokens + count)]
            request[1] = tokens + int(draw.integers(1, count + 1))  # the rest was rejected
        clock += 1
        mapping = np.array([*step, -1, -1], np.int64)
        slots, _ = written_slots(mapping)
        key_written[slots] = clock
        summary_made[completed_pages(slots)] = clock
        for pages, tokens in requests:
            for index in range(tokens // 16):
                page = pages[index]
                assert summary_made[page] >= key_written[page * 16 : page * 16 + 16].max()


def rows_of(starts, contexts, tables, prefilling=None, limit=8):
    prefilling = None if prefilling is None else np.array(prefilling)
    return split_rows(
        np.array(starts, np.int32), np.array(contexts, np.int32), np.array(tables, np.int32), prefilling, limit
    )


def test_a_mixed_step():
    """A decode, a chunk of a prompt, three speculated rows behind a token, and padding."""
    tables = [[7, 8, 9, 0], [3, 4, 0, 0], [5, 6, 2, 1], [0, 0, 0, 0]]
    rows = rows_of([0, 1, 6, 10, 10], [35, 20, 50, 0], tables, [False, True, False, False])
    assert rows.decode_rows.tolist() == [0, 6, 7, 8, 9]
    assert rows.decode_context.tolist() == [35, 47, 48, 49, 50]
    assert rows.decode_tables.tolist() == [tables[0], *[tables[2]] * 4]
    (chunk,) = rows.prefills
    assert (chunk.first, chunk.last, chunk.pages.tolist()) == (1, 6, [3, 4])
    assert chunk.visible_tokens.tolist() == [16, 17, 18, 19, 20]


def test_a_short_rest_of_a_prompt_is_no_decode():
    rows = rows_of([0, 1, 2], [40, 40], [[1, 2, 3], [4, 5, 6]], [True, False])
    assert rows.decode_rows.tolist() == [1]
    assert rows.prefills[0].visible_tokens.tolist() == [40]


def test_without_word_of_prompts_many_rows_or_a_first_step_are_one():
    rows = rows_of([0, 9, 12, 13], [30, 3, 13], [[1, 2], [3, 0], [4, 0]], limit=8)
    assert rows.decode_rows.tolist() == [12]
    assert [(p.first, p.last) for p in rows.prefills] == [(0, 9), (9, 12)]


def test_types_are_those_of_the_library():
    rows = rows_of([0, 1, 12], [17, 11], [[1, 2], [3, 4]], [False, True])
    assert rows.decode_tables.dtype == rows.decode_context.dtype == np.int32
    assert rows.prefills[0].pages.dtype == rows.prefills[0].visible_tokens.dtype == np.int32


def division_of(starts, contexts, prefilling=None):
    prefilling = None if prefilling is None else np.array(prefilling)
    return divide_rows(np.array(starts, np.int32), np.array(contexts, np.int32), prefilling, 8)


def test_a_batch_that_a_graph_can_hold():
    """Two requests of three rows each, and padding."""
    division = division_of([0, 3, 6, 6, 6], [40, 21, 0, 0], [False, False])
    assert (division.rows_each, division.first_prompt, division.prompt_rows) == (3, None, 0)
    assert division.decode_owners.tolist() == [0, 0, 0, 1, 1, 1]
    assert division.tokens_after.tolist() == [2, 1, 0, 2, 1, 0]
    assert division.decode_contexts.tolist() == [38, 39, 40, 19, 20, 21]


def test_a_last_prompt_token_looks_like_a_decode_to_a_graph():
    division = division_of([0, 1, 2], [40, 40], [True, False])
    assert division.rows_each == 1 and division.first_prompt == 0 and division.prompt_rows == 1
    assert division.decodes.tolist() == [False, True]


@pytest.mark.parametrize("starts", [[0, 1, 3], [0, 0, 1], [0, 0, 0]])
def test_rows_that_are_not_alike(starts):
    assert division_of(starts, [20, 20]).rows_each == 0
