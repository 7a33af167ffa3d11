"""Turns LOCKS on in a llama.cpp that runs inside this Python process: one call, before the first model is loaded.

    import locks_llamacpp, xllamacpp
    locks_llamacpp.enable("build/libggml-locks.so", budget_tokens=512, stats="locks.json")
    server = xllamacpp.Server(params)

The settings are those of docs/LLAMACPP.md in lower case and without their prefix. A process takes the plug-in once.
"""

import ctypes
import json
import os

_plugin = None


def host_library():
    """The library that holds ggml and llama.cpp in this process: xllamacpp's extension, or llama-cpp-python's libllama."""
    try:
        import xllamacpp

        return ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    except ImportError:
        pass
    try:
        # llama_cpp._ggml holds a second copy of ggml, which llama.cpp never calls.
        import llama_cpp

        return llama_cpp.llama_cpp._lib
    except ImportError:
        raise RuntimeError("neither xllamacpp nor llama-cpp-python is installed") from None


def enable(path, library=None, **settings):
    """Loads the plug-in at `path` with these settings; raises RuntimeError where the plug-in or the host refuses."""
    global _plugin
    if _plugin is not None:
        raise RuntimeError("LOCKS is already loaded in this process; its settings are read once")
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise RuntimeError(f"no such file: {path}")
    for name, value in settings.items():
        os.environ["LOCKS_" + name.upper()] = str(value)
    load = (library or host_library()).ggml_backend_load
    load.restype, load.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    if not load(os.fsencode(path)):
        raise RuntimeError(f"the host did not take {path}; its reason is on the standard error stream")
    _plugin = ctypes.CDLL(path)


def plugin():
    """The loaded plug-in as a ctypes library; raises RuntimeError where there is none."""
    if _plugin is None:
        raise RuntimeError("LOCKS is not loaded in this process")
    return _plugin


def statistics():
    """What the plug-in counted since its start, or since reset_statistics(), as a dictionary."""
    function = plugin().locks_llamacpp_statistics
    function.restype, function.argtypes = ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]
    size = 1 << 16
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = function(buffer, size)
        if needed <= size:
            return json.loads(buffer.value.decode())
        size = needed


def reset_statistics():
    function = plugin().locks_llamacpp_reset_statistics
    function.restype, function.argtypes = None, []
    function()
