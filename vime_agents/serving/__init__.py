"""Start, reach and update vLLM engines: processes and HTTP, never `import vllm`."""
