"""The server, in rooms. Each imports only those above it in this list:

protocol    request bodies and what is wrong with them, answers, errors
parsers     a text's reasoning and tool calls
prompts     from chats and texts to tokens and constraints
process     the engine's process: its loop, messages, client and supervision
answers     from the engine's outputs to answers and streams
monitoring  metrics, the request log, traces
http        routes, middleware, connections, the page
launch      puts them together
"""
