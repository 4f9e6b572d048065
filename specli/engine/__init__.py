"""llama.cpp, through llama-cpp-python's low-level API. Nothing outside this room imports it.

`backend` the library and the machine, `probe` the trial run in a child process, `gguf` the file
before the library sees it, `model` weights, `vocab` tokens and text, `context` the cache: decode and
rewind, `compat` target and draft side by side, `exact` the fixed-width self-test.
"""
