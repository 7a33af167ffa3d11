"""What the layers of one engine share: settings, counts, and what a backend adds. Lives as long as the engine's layers."""

from __future__ import annotations

import importlib
import weakref
from typing import Any

from vllm.logger import init_logger

from locks_cpp.vllm import LOGGER_NAME, compat, settings
from locks_cpp.vllm.exported import Exported
from locks_cpp.vllm.metrics import Metrics
from locks_cpp.vllm.pages import PAGE_TOKENS
from locks_cpp.vllm.refusal import Refusal, refuse_engine
from locks_cpp.vllm.store import SummaryStore

logger = init_logger(LOGGER_NAME)


def engine_of(vllm_config: Any) -> Engine | None:
    layers = vllm_config.compilation_config.static_forward_context
    return next((layer.engine for layer in layers.values() if isinstance(layer, SummaryStore)), None)


class Engine:
    """`library` is locks_cpp or locks_cpp.cuda: both lay out summaries, each for its own device."""

    library: Any
    on_cuda: bool  # what settings are by default depends on it

    def __init__(self, vllm_config: Any) -> None:
        try:
            importlib.import_module("locks_cpp._native")
        except ImportError as error:
            raise Refusal(f"the native module of locks_cpp cannot be loaded: {error}") from error
        compat.check_interface()
        refuse_engine(vllm_config)
        self.settings = settings.parse(settings.given(vllm_config.additional_config), cuda=self.on_cuda)
        self.max_context_tokens = int(vllm_config.model_config.max_model_len)
        config = self.settings.config
        self.metrics = Metrics(
            logger, config.min_context_tokens, self.settings.log_interval_seconds, Exported().tell
        )
        weakref.finalize(self, Metrics.end, self.metrics)
        self._announced = False

    def resources(self) -> str:
        """What the engine uses besides the cache, for the line that says that LOCKS is active."""
        raise NotImplementedError

    def announce(self, store: SummaryStore, cache_bytes_per_page: int) -> None:
        """The one line that says that LOCKS is active."""
        if self._announced:
            return
        self._announced = True
        config = self.settings.config
        logger.info(
            "LOCKS is active: %d tokens of each context of %d or more are attended, %s, completion of %.0f%% of the "
            "pages; format %s: %d bytes for each %d-token page and layer (%.1f%% more KV cache memory); %s%s",
            config.budget_tokens,
            max(config.min_context_tokens, config.budget_tokens + 1),
            self.settings.selects,
            100 * config.completion_fraction,
            config.format,
            store.page_bytes,
            PAGE_TOKENS,
            100 * store.page_bytes / cache_bytes_per_page,
            self.resources(),
            "; debug_check is on: slow" if self.settings.debug_check else "",
        )
        if max(config.min_context_tokens, config.budget_tokens + 1) > self.max_context_tokens:
            logger.warning(
                "LOCKS will attend every context exactly: none can be longer than --max-model-len = %d",
                self.max_context_tokens,
            )
