"""The draft-length controller: cost of steps, value of drafts, decision to draft. Without I/O."""
