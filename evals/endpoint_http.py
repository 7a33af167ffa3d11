"""HTTP by the standard library, with a time-out for the whole of a request: urllib's is for each piece that comes in."""

from __future__ import annotations

import functools
import http.client
import io
import time
import urllib.parse
import urllib.request

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class _Until(io.RawIOBase):
    """What a socket has, up to a time; TimeoutError then."""

    def __init__(self, sock, pieces, end):
        super().__init__()
        self._sock, self._pieces, self._end = sock, pieces, end

    def readable(self):
        return True

    def readinto(self, buffer):
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._pieces.readinto(buffer)

    def close(self):
        self._pieces.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock, *rest, end, **more):
        super().__init__(sock, *rest, **more)
        self.fp = io.BufferedReader(_Until(sock, self.fp.detach(), end))


class _Timed:
    """A handler whose connections' time runs from before they are made."""

    def do_open(self, http_class, req, **more):
        def connection(host, timeout, **settings):
            made = http_class(host, timeout=timeout, **settings)
            made.response_class = functools.partial(_Response, end=time.monotonic() + timeout)
            return made

        return super().do_open(connection, req, **more)


class _Http(_Timed, urllib.request.HTTPHandler):
    pass


class _Https(_Timed, urllib.request.HTTPSHandler):
    pass


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A key goes to no other address than the one that was named."""

    def http_error_302(self, *_):
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def opener(url):
    # What environments say of proxies is not meant for servers of this machine.
    local = urllib.parse.urlsplit(url).hostname in LOCAL_HOSTS
    return urllib.request.build_opener(_Http, _Https, _NoRedirect, *([urllib.request.ProxyHandler({})] if local else []))


def read_all(response, most):
    """The body; None where it has more than `most` bytes."""
    announced = response.headers.get("Content-Length", "").strip()
    whole = int(announced) if announced.isdecimal() and len(announced) < 20 else None
    pieces, size = [], 0
    while size != whole and (piece := response.read1(1 << 16)):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            return None
    if whole is not None and size < whole:
        raise http.client.IncompleteRead(b"".join(pieces), whole - size)
    return b"".join(pieces)
