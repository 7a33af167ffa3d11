from endpoint_server import server  # noqa: F401 - a fixture
