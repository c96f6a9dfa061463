"""GGUF files (llama.cpp's format): what is in their headers, in the words of a checkpoint folder.

    files     which files these are, and what their models are called
    header    what a file says of itself: keys with values, tensors
    parts     a model in several files
    metadata  keys, typed and checked
    names     which of its tensors hold what a checkpoint calls by another name; a file an architecture
    tokenizer tokenizer.json and the chat template
    folder    all of it as a folder that the rest of nextn reads

The standard library is enough for that; `nextn.models.gguf_reader` reads the weights.
"""
