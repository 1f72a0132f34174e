"""Each request goes on by what it accepted itself."""
