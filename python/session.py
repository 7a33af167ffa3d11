"""A llama.cpp in a process of its own: stock, or with LOCKS. A process takes the plug-in once and reads its settings
once, so every setting that is compared needs its own.

    with Session(plugin, {"budget_tokens": 512}) as session:
        print(session.run(some_function, argument))     # some_function(host_state, argument), run in that process

`some_function` and what it takes and returns must be picklable; it finds `host`, `model` and `contexts` in the state.
"""

import multiprocessing
import os
import traceback

_SPAWN = multiprocessing.get_context("spawn")


class SessionError(RuntimeError):
    """The process ended; or, as the cause of an error that was raised there, that process's own traceback."""


class State:
    def __init__(self, host, model):
        self.host, self.model = host, model
        self.contexts = {}

    def context(self, name="main", **options):
        """The context of that name, made with these options when it is first asked for."""
        from llama_host import Context

        if name not in self.contexts:
            self.contexts[name] = Context(self.model, **options)
        return self.contexts[name]

    def close(self, name="main"):
        self.contexts.pop(name).close()

    def close_all(self):
        for name in list(self.contexts):
            self.close(name)


def _serve(connection, plugin, settings, model_path, verbose):
    import locks_llamacpp
    from llama_host import Host, Model

    try:
        for name in [name for name in os.environ if name.startswith("LOCKS_")]:
            del os.environ[name]
        host = Host(verbose=verbose)
        if plugin:
            locks_llamacpp.enable(plugin, host.library, **settings)
        state = State(host, Model(host, model_path))
        connection.send((True, None))
    except Exception as error:
        connection.send((False, (error, traceback.format_exc())))
        return
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            break
        try:
            connection.send((True, function(state, *arguments)))
        except Exception as error:
            connection.send((False, (error, traceback.format_exc())))
            state.close_all()
    state.close_all()
    state.model.close()


class Session:
    def __init__(self, plugin=None, settings=None, model_path=None, verbose=False):
        from llama_host import real_model_path

        self._connection, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_serve,
            args=(theirs, str(plugin) if plugin else None, settings or {}, str(model_path or real_model_path()), verbose),
        )
        self._process.start()
        theirs.close()
        self._receive()

    def run(self, function, *arguments):
        self._connection.send((function, arguments))
        return self._receive()

    def _receive(self):
        try:
            done, result = self._connection.recv()
        except EOFError:
            self._process.join()
            raise SessionError(f"the process of llama.cpp ended with status {self._process.exitcode}") from None
        if not done:
            error, trace = result
            raise error from SessionError(trace)
        return result

    def kill(self):
        """Ends the process at once, from any thread. `close` is still to be called."""
        self._process.kill()

    def close(self):
        """Ends the process and returns its exit status."""
        self._connection.close()
        self._process.join()
        return self._process.exitcode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
