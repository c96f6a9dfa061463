"""Parsers that split a text into reasoning, content and tool calls, while it arrives."""
