"""Start vLLM servers and speak to them: processes and HTTP, no vLLM import."""
