"""The HTTP server. Each of its rooms imports only rooms above it in this list:

protocol    request bodies and their checks, answers, errors
parsers     find reasoning and tool calls in a text
prompts     turn chats and texts into tokens and constraints
process     the engine's process: its loop, messages, client and supervision
answers     turn the engine's outputs into answers and streams
monitoring  metrics, the request log, traces
http        routes, middleware, connections, the web page
launch      starts all parts of a server, and ends them
"""
