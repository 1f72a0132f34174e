"""Times of a step in vLLM, bf16 against the plug-in: `specpilot-harness weight12 bench-vllm`."""
