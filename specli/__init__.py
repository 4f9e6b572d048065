"""specli: local GGUF models, faster by speculative decoding, without changing what they say."""

__version__ = "0.1.0"
