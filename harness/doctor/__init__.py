"""What is installed here, what works, and the one command that mends each lack; needs nothing but Python."""
