"""From a request to its choices in the engine, and from their outputs to answers and streams."""
