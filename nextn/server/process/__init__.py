"""The engine's process and this one's side of it: messages, client, supervision, log lines of both."""
