"""The command line: thin commands over the library; every figure printed can be had as JSON."""
