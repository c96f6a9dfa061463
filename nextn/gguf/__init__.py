"""Reads the headers of GGUF files (llama.cpp's format) and presents them as checkpoint folders.

    files         recognises GGUF files, and names their models
    header        a file's keys with values, and its tensors
    types         ggml's types of tensors
    parts         a model in several files
    metadata      keys, typed and checked
    names         which rows of a file's tensors a checkpoint's tensor is
    architectures config.json and names of tensors, one file per architecture
    tokenizer     tokenizer.json and the chat template; also pretokenizers and sentencepiece
    folder        all of it as a folder that the rest of nextn reads

This needs only the standard library. `nextn.models.gguf_reader` reads the weights.
"""
