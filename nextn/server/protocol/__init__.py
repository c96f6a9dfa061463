"""Request bodies and their checks, and the form of answers and errors."""
