"""What the demo found: as a table for a person, as JSON for a program."""

import statistics as stats
from dataclasses import dataclass

PAGE_TOKENS = 16


@dataclass(frozen=True)
class Outcome:
    context_tokens: int
    threads: int
    document: str
    stock_prompt_seconds: float
    sampled_tokens: int  # of the prompt, read by both; the seconds of each follow
    sampled_stock_seconds: float
    sampled_locks_seconds: float
    stock_step_seconds: list
    locks_step_seconds: list
    num_generated: int
    first_difference: int | None  # leading tokens that both texts share; None where they are equal
    stock_text: str
    locks_text: str
    statistics: dict  # of the plug-in, over the answer's steps


def as_json(outcome):
    counted = outcome.statistics
    steps = max(counted["decode_steps"], 1)
    read = counted["score_bytes"] + counted["attend_bytes"] + counted["complete_bytes"]
    stock_step, locks_step = stats.median(outcome.stock_step_seconds), stats.median(outcome.locks_step_seconds)
    return {
        "document": outcome.document,
        "threads": outcome.threads,
        "context_tokens": outcome.context_tokens,
        "generated_tokens": outcome.num_generated,
        "stock_prompt_tokens_per_second": outcome.context_tokens / outcome.stock_prompt_seconds,
        "sampled_prompt_tokens": outcome.sampled_tokens,
        "sampled_stock_prompt_tokens_per_second": outcome.sampled_tokens / outcome.sampled_stock_seconds,
        "sampled_locks_prompt_tokens_per_second": outcome.sampled_tokens / outcome.sampled_locks_seconds,
        "prompt_speedup": outcome.sampled_stock_seconds / outcome.sampled_locks_seconds,
        "stock_decode_tokens_per_second": 1 / stock_step,
        "locks_decode_tokens_per_second": 1 / locks_step,
        "decode_speedup": stock_step / locks_step,
        "dense_bytes_per_token": counted["dense_bytes"] / steps,
        "locks_bytes_per_token": read / steps,
        "score_bytes_per_token": counted["score_bytes"] / steps,
        "attend_bytes_per_token": counted["attend_bytes"] / steps,
        "complete_bytes_per_token": counted["complete_bytes"] / steps,
        "bytes_share": read / max(counted["dense_bytes"], 1),
        "attended_tokens": counted["attended_tokens"],
        "attended_share": counted["attended_tokens"] / max(counted["context_tokens"], 1),
        "coverage": counted["coverage"],
        "layers": counted["layers"],
        "pages_per_layer": -(-outcome.context_tokens // PAGE_TOKENS),
        "completed_pages_per_layer": counted["completed_pages"],
        "summaries": counted["summarized_pages"],
        "summarize_seconds": counted["summarize_seconds"],
        "texts_equal": outcome.first_difference is None,
        "first_difference": outcome.first_difference,
        "stock_text": outcome.stock_text,
        "locks_text": outcome.locks_text,
    }


def render(outcome):
    found = as_json(outcome)
    megabyte = 1e6
    rows = [
        ("", "stock", "LOCKS", ""),
        (
            "prompt, tokens/s",
            f"{found['sampled_stock_prompt_tokens_per_second']:.1f}",
            f"{found['sampled_locks_prompt_tokens_per_second']:.1f}",
            f"{found['prompt_speedup']:.2f} x",
        ),
        (
            "decode, tokens/s",
            f"{found['stock_decode_tokens_per_second']:.1f}",
            f"{found['locks_decode_tokens_per_second']:.1f}",
            f"{found['decode_speedup']:.2f} x",
        ),
        (
            "attention reads, MB per token",
            f"{found['dense_bytes_per_token'] / megabyte:.1f}",
            f"{found['locks_bytes_per_token'] / megabyte:.1f}",
            f"{found['bytes_share']:.1%}",
        ),
        (
            "tokens attended, of those cached",
            f"{found['context_tokens']:,}",
            f"{found['attended_tokens']:,.0f}",
            f"{found['attended_share']:.1%}",
        ),
        ("estimated coverage", "100 %", f"{100 * found['coverage']:.1f} %", ""),
        (
            "pages per layer",
            f"{found['pages_per_layer']}",
            f"{found['attended_tokens'] / PAGE_TOKENS:.0f} + {found['completed_pages_per_layer']:.0f}",
            "attended, in pages' worth of tokens, + completed",
        ),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in rows]
    rule = "-" * (sum(widths[:3]) + 4)
    if found["texts_equal"]:
        difference = f"Both texts are the same, all {found['generated_tokens']} tokens."
    else:
        difference = f"The texts first differ at token {found['first_difference'] + 1} of {found['generated_tokens']}."
    score_share = found["score_bytes_per_token"] / max(found["locks_bytes_per_token"], 1)
    notes = [
        difference,
        f"Model SmolLM2-135M-Instruct, {found['layers']} layers, {found['threads']} threads, "
        f"{found['context_tokens']:,} tokens cached; decode is the median step.",
        f"Prompt: the same {found['sampled_prompt_tokens']:,} tokens, in equal places, read by both; stock read all "
        f"{found['context_tokens']:,} at {found['stock_prompt_tokens_per_second']:.1f} tokens/s.",
        f"Stock reads at least that many bytes. LOCKS reads {score_share:.0%} of its bytes to score pages; it summarised "
        f"{found['summaries']:,} pages in {found['summarize_seconds']:.2f} s.",
    ]
    return "\n".join([lines[0], rule, *lines[1:], rule, *notes])
