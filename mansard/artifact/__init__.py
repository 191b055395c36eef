"""The compiled model as data (`plan`) and as a file (`container`): where compiler and runtime meet."""
