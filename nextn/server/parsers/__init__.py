"""How a text is parted into reasoning, content and tool calls, while it arrives."""
