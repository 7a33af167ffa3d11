"""What LOCKS does not serve ends the start of the engine with one line: never a silent run without LOCKS."""

from __future__ import annotations

from typing import Any


class Refusal(ValueError):
    """Its message is the one line that the user sees."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"LOCKS refuses to start: {reason}")


HEAD_DIMS = (64, 80, 96, 128, 192, 256)  # those of the library
CPU_CACHE_DTYPES = ("auto", "float32", "float16", "bfloat16")
FP8_CACHE_DTYPES = ("fp8", "fp8_e4m3")  # two names of one
CUDA_CACHE_DTYPES = ("auto", "float16", "bfloat16", *FP8_CACHE_DTYPES)  # FlashAttention's, which attends to prompts
SPECULATIONS = ("ngram",)


def refuse_engine(vllm_config: Any) -> None:
    """What the whole engine asks for and LOCKS does not serve."""
    parallel = vllm_config.parallel_config
    for name, flag in (
        ("decode_context_parallel_size", "--decode-context-parallel-size"),
        ("prefill_context_parallel_size", "--prefill-context-parallel-size"),
    ):
        size = getattr(parallel, name, 1)
        if size > 1:
            raise Refusal(f"{flag} is {size}; a page of 16 tokens must lie on one rank, so only 1 is served")
    if getattr(parallel, "use_ubatching", False):
        raise Refusal(
            "batches are split in two that run at once (--enable-dbo); layers share buffers, so that is not served"
        )
    if getattr(vllm_config, "kv_transfer_config", None) is not None:
        raise Refusal("a KV connector is configured (kv_transfer_config); blocks that it loads would have no summaries")
    skipped = getattr(getattr(vllm_config, "cache_config", None), "kv_cache_dtype_skip_layers", None)
    if skipped:
        raise Refusal(
            f"--kv-cache-dtype-skip-layers {' '.join(map(str, skipped))}; layers of several cache types have block tables "
            "of their own"
        )
    speculative = getattr(vllm_config, "speculative_config", None)
    method = getattr(speculative, "method", None)
    if speculative is not None and method not in SPECULATIONS:
        raise Refusal(
            f"speculation by {method!r} (--speculative-config); served is {', '.join(SPECULATIONS)}: how other methods and "
            "the layers of a model that drafts use the cache was not tried"
        )
    model = vllm_config.model_config
    for name, what in (
        ("use_mla", "uses multi-head latent attention (MLA)"),
        ("is_hybrid", "mixes attention with state-space layers"),
        ("is_encoder_decoder", "has an encoder and cross attention"),
        ("attention_chunk_size", "attends in local chunks"),
        ("rswa_window", "uses a reference sliding window"),
        ("is_mm_prefix_lm", "attends to parts of its prompt in both directions"),
    ):
        if getattr(model, name, False):
            raise Refusal(f"the model {what}, which is not served")


def refuse_layer(
    *,
    head_dim: int,
    head_dims: tuple[int, ...],
    kv_cache_dtype: str,
    cache_dtypes: tuple[str, ...],
    attn_type: Any,
    alibi_slopes: Any,
    sliding_window: Any,
    logits_soft_cap: Any,
    kv_sharing_target: Any,
    extra: dict[str, Any],
) -> None:
    """What one attention layer asks for and LOCKS does not serve. `extra` are the arguments beyond vLLM's common ones."""
    kind = getattr(attn_type, "value", attn_type)
    if kind not in (None, "decoder"):
        raise Refusal(f"attention of type {kind!r}; only decoder attention is served")
    if head_dim not in head_dims:
        raise Refusal(f"head dimension {head_dim}; served are {', '.join(map(str, head_dims))}")
    if kv_cache_dtype not in cache_dtypes:
        raise Refusal(f"--kv-cache-dtype {kv_cache_dtype}; served are {', '.join(cache_dtypes)}")
    if extra.get("sinks") is not None:
        raise Refusal("the model has attention sinks, which are not served")
    for given, what in (
        (alibi_slopes is not None, "the model uses ALiBi, which is not served"),
        (
            sliding_window is not None,
            f"the model has layers with a sliding window ({sliding_window} tokens), which are not served",
        ),
        (bool(logits_soft_cap), f"the model caps its attention logits (soft cap {logits_soft_cap}), which is not served"),
        (kv_sharing_target is not None, f"layers share the KV cache of {kv_sharing_target}, which is not served"),
    ):
        if given:
            raise Refusal(what)
    unknown = sorted(name for name, value in extra.items() if name != "sinks" and value is not None and value is not False)
    if unknown:
        raise Refusal(f"this model gives its attention layers the arguments {', '.join(unknown)}, which are not known here")
