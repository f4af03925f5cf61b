"""Compiling the kernels, installing the library and trusting one that is found.

Knows compilers, files and their owners; nothing of torch, models or what the kernels compute.
"""
