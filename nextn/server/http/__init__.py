"""The HTTP server: routes, middleware, connections, event streams, the web page."""
