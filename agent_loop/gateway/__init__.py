"""The only holder of the API key and the only way out: a loopback proxy in front of the Messages API."""
