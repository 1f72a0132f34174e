"""The published mechanisms of lossless speculative decoding, fast and readable."""
