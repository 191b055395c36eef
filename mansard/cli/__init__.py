"""The command line: one file per command; `main` registers them.

Nothing here imports the compiler, a frontend or a driver before a command needs it, so that
``mansard --help`` answers immediately and works on a machine with only the runtime installed.
"""
