"""The draft-length controller: what steps cost, what drafts are worth, and whether to draft. Pure."""
