"""The command line: one file per command, `main` puts them together.

Nothing here imports the compiler, a frontend or a driver before a command needs it, so that
``mansard --help`` answers at once and works on a machine with the runtime alone.
"""
