"""The engine process, and the HTTP process's side of it: messages, client, supervision, logging."""
