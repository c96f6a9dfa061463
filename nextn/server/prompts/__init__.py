"""From a checked request to what the engine needs: token ids, constraints, stop expressions."""
