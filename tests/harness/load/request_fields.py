"""Request fields that the schema of every test server names: OpenAI's and extensions all engines share."""

COMMON = (
    *("model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options"),
    *("top_k", "min_p", "min_tokens", "ignore_eos", "stop_token_ids", "repetition_penalty"),
    *("skip_special_tokens", "return_token_ids"),
)
