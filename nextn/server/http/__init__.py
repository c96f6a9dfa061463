"""The server as a client sees it: routes, middleware, connections, event streams, the page."""
