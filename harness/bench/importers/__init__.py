"""Results of other tools in our names, so that one history holds them all: vLLM, SGLang, GuideLLM, AIPerf, a block."""
