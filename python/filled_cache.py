"""A long KV cache without reading a long prompt: the saved state of a short one, its rows repeated.

The state of one sequence, as llama.cpp writes it: u32 magic, i32 sequence, u32 streams, for each stream u32 cells,
for each cell {i32 position, u32 sequences, i32 sequence}, then u32 transposed, layers, rotation of K and of V, then
for each layer of K and again of V {i32 type, u64 bytes of a row, the rows}. What is written is checked by llama.cpp
when it reads the result, and here by the size of what was saved.
"""

import struct

import numpy as np

from llama_host import HostError

PREFIX_BYTES = 16
CELL = np.dtype([("position", "<i4"), ("sequences", "<u4"), ("sequence", "<i4")])


def for_streams(state, streams):
    """The state of a cache with one stream, as a cache with several takes it: the others are empty."""
    (own,) = struct.unpack_from("<I", state, 8)
    if own != 1:
        raise HostError(f"the saved state has {own} streams where 1 was expected")
    result = np.concatenate([state, np.zeros(4 * (streams - 1), np.uint8)])
    struct.pack_into("<I", result, 8, streams)
    return result


def extend(state, tokens, seed=1):
    """`state` (uint8, one sequence of one stream with consecutive positions) with `tokens` cells, rows drawn from its
    own."""
    streams, cells = struct.unpack_from("<II", state, 8)
    if streams != 1 or not 0 < cells <= tokens:
        raise HostError(f"cannot extend a saved state of {streams} streams and {cells} cells to {tokens} tokens")
    header = PREFIX_BYTES + cells * CELL.itemsize
    if struct.unpack_from("<iIi", state, PREFIX_BYTES)[1] != 1:
        raise HostError("the saved state's cells are laid out in a way unknown here")
    transposed, layers = struct.unpack_from("<II", state, header)
    if transposed:
        raise HostError("the saved state has transposed values; flash attention must be on")
    tables = header + 16
    # The first rows stay as they are: they hold what every head attends to most.
    rows = np.concatenate([np.arange(cells), np.random.default_rng(seed).integers(0, cells, tokens - cells)])
    offsets, size = [], PREFIX_BYTES + tokens * CELL.itemsize + 16
    place = tables
    for _ in range(2 * layers):
        row_bytes = struct.unpack_from("<Q", state, place + 4)[0]
        offsets.append((place, row_bytes))
        place += 12 + cells * row_bytes
        size += 12 + tokens * row_bytes
    if place != len(state):
        raise HostError(f"the saved state has {len(state)} bytes where its own header accounts for {place}")
    result = np.empty(size, np.uint8)
    result[:8] = state[:8]
    struct.pack_into("<II", result, 8, 1, tokens)
    cell_table = np.zeros(tokens, CELL)
    cell_table["position"] = np.arange(tokens)
    cell_table["sequences"] = 1
    end = PREFIX_BYTES + tokens * CELL.itemsize
    result[PREFIX_BYTES:end] = cell_table.view(np.uint8)
    result[end : end + 16] = state[header:tables]
    end += 16
    for place, row_bytes in offsets:
        result[end : end + 12] = state[place : place + 12]
        source = state[place + 12 : place + 12 + cells * row_bytes].reshape(cells, row_bytes)
        np.take(
            source,
            rows,
            axis=0,
            out=result[end + 12 : end + 12 + tokens * row_bytes].reshape(tokens, row_bytes),
            mode="clip",
        )
        end += 12 + tokens * row_bytes
    return result
