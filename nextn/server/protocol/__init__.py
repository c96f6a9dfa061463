"""What requests may say, what is wrong with them, and the form of answers and errors."""
