"""The engine process, and the HTTP process's part in it: messages, client, supervision, logging."""
